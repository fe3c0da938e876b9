//! Parses the plugin's records. Pure.
//!
//! Any process that can write to the socket can send records. So parsing bounds each text, and
//! replaces characters that would break a log line.

use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::cni::error::code;

use crate::config::ignored::{self, Ignored, SOURCES};

/// Longest name of a pod, a Namespace or a container, in bytes.
const NAME_LIMIT: usize = 253;
/// How much of a free text is kept, in characters.
const TEXT_LIMIT: usize = 1024;

/// Level at which the agent logs the record.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// `CNI_COMMAND` of the plugin call.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum Command {
    Add,
    Check,
}

/// Backend that applied the redirect rules.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Native,
    Nft,
    Legacy,
    Plain,
}

/// The plugin's report of one call.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub struct Record {
    pub level: Level,
    pub command: Command,
    pub namespace: String,
    pub pod: String,
    /// UID of the pod object; empty if the plugin does not know it.
    #[serde(default)]
    pub pod_uid: String,
    container_id: String,
    /// Result of the call, or why the pod was skipped.
    pub decision: String,
    #[serde(default)]
    pub backend: Option<Backend>,
    /// Requests that the plugin sent to the API server.
    requests: u32,
    /// Duration of the call, in milliseconds.
    pub ms: u64,
    #[serde(default)]
    pub error: Option<PluginError>,
    /// Invalid elements of port lists, which have no effect.
    #[serde(default, deserialize_with = "known")]
    pub ignored: Vec<Ignored>,
}

/// The CNI error that the plugin returned.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub struct PluginError {
    pub code: u32,
    msg: String,
}

impl Record {
    /// Parses a record. Returns `None` if `bytes` are not a record, or if a name in it is invalid.
    pub fn read(bytes: &[u8]) -> Option<Record> {
        let mut record: Record = serde_json::from_slice(bytes).ok()?;
        let names = [&record.namespace, &record.pod, &record.container_id];
        if !names.into_iter().all(|name| is_name(name)) {
            return None;
        }
        if !is_name(&record.pod_uid) {
            record.pod_uid.clear();
        }
        record.decision = line(&record.decision);
        if let Some(error) = &mut record.error {
            error.msg = line(&error.msg);
        }
        Some(record)
    }

    /// Whether the API server refused the plugin (HTTP 401 or 403).
    pub fn is_refusal(&self) -> bool {
        let code = self.error.as_ref().map(|error| error.code);
        code == Some(code::API_DENIED)
    }
}

/// Reads the lists whose source this agent knows, one per source and cut to a bounded length.
/// Skips unknown sources, because a later plugin version may send them.
fn known<'de, D: Deserializer<'de>>(field: D) -> Result<Vec<Ignored>, D::Error> {
    #[derive(Deserialize)]
    struct Sent {
        source: String,
        elements: Vec<String>,
        #[serde(default)]
        more: usize,
    }
    let sent = Vec::<Sent>::deserialize(field)?;
    let of = |source: &'static str| {
        let list = sent.iter().find(|list| list.source == source)?;
        Some(Ignored { source, elements: list.elements.clone(), more: list.more })
    };
    Ok(ignored::cut(SOURCES.into_iter().filter_map(of).collect()))
}

/// Whether `text` has only characters that occur in names, and is not too long.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.len() <= NAME_LIMIT && text.bytes().all(fits)
}

/// Puts the text on one line, and cuts it.
fn line(text: &str) -> String {
    let printed = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(TEXT_LIMIT).map(printed).collect()
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = match self.command {
            Command::Add => "ADD",
            Command::Check => "CHECK",
        };
        write!(
            f,
            "linkerd-cni: {command} {}/{} container {}: {}",
            self.namespace, self.pod, self.container_id, self.decision
        )?;
        if let Some(backend) = self.backend {
            let backend = format!("{backend:?}").to_lowercase();
            write!(f, " by {backend}")?;
        }
        write!(f, ", {} requests, {} ms", self.requests, self.ms)?;
        if let Some(ignored) = ignored::summary(&self.ignored) {
            write!(f, "; {ignored}")?;
        }
        match &self.error {
            Some(error) => write!(f, ": {} (code {})", error.msg, error.code),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"level":"error","command":"ADD","namespace":"ns","pod":"web-1",
        "container_id":"abc","decision":"failed","requests":2,"ms":7,
        "error":{"code":101,"msg":"no answer\nof the API server"},"new":{}}"#;

    #[test]
    fn a_record_is_logged_on_one_line_of_bounded_length() {
        let record = Record::read(RECORD.as_bytes()).unwrap();
        assert_eq!(
            record.to_string(),
            "linkerd-cni: ADD ns/web-1 container abc: failed, 2 requests, 7 ms: \
             no answer of the API server (code 101)"
        );
        assert_eq!(record.level, Level::Error);
        let long = RECORD.replace("no answer", &"é".repeat(3000));
        let long = Record::read(long.as_bytes()).unwrap().to_string();
        assert!(long.chars().count() < TEXT_LIMIT + 100);
        let good = RECORD
            .replace("failed\"", "redirected\",\"backend\":\"native\"")
            .replace("\"error\":", "\"other\":");
        let good = Record::read(good.as_bytes()).unwrap().to_string();
        assert_eq!(
            good,
            "linkerd-cni: ADD ns/web-1 container abc: redirected by native, 2 requests, 7 ms"
        );
    }

    #[test]
    fn ignored_elements_of_known_lists_are_cut_and_logged_with_the_record() {
        let sent = |ignored: &str| {
            let record = RECORD.replace("\"new\":{}", &format!("\"ignored\":{ignored}"));
            Record::read(record.as_bytes())
        };
        let list = |source: &str, element: &str| {
            format!(
                r#"{{"source":"{source}","elements":["{element}"],"more":18446744073709551615}}"#
            )
        };
        let lists = [
            list("inbound-ports-to-ignore", &"x".repeat(5000)),
            list("config.linkerd.io/skip-outbound-ports", "a\\n\\u001b"),
            list("config.linkerd.io/skip-outbound-ports", "twice"),
            list("of a later plugin", "y"),
        ];
        let record = sent(&format!("[{}]", lists.join(","))).unwrap();
        let sources: Vec<_> = record.ignored.iter().map(|list| list.source).collect();
        assert_eq!(sources, ["config.linkerd.io/skip-outbound-ports", "inbound-ports-to-ignore"]);
        assert_eq!(record.ignored[1].elements[0].len(), 100);
        let line = record.to_string();
        assert!(!line.contains(char::is_control), "{line}");
        let start = "; ignored in config.linkerd.io/skip-outbound-ports: \"a\\n\\u{1b}\", ";
        assert!(line.contains(start), "{line}");
        for bad in ["{}", "[1]", r#"[{"source":1}]"#, r#"[{"source":"x","elements":[1]}]"#] {
            assert_eq!(sent(bad), None, "{bad}");
        }
    }

    #[test]
    fn invalid_records_are_rejected() {
        for text in [
            "".to_owned(),
            "[]".into(),
            "{}".into(),
            RECORD.replace("ADD", "RUN"),
            RECORD.replace("web-1", "web\\n1"),
            RECORD.replace("web-1", &"a".repeat(300)),
            RECORD.replace("\"error\",", "\"loud\","),
            RECORD.replace("\"ms\":7", "\"ms\":-1"),
        ] {
            assert_eq!(Record::read(text.as_bytes()), None, "{text}");
        }
    }
}
