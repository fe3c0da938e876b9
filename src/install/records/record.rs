//! One record of the plugin's, as it may come from anybody who can write to the
//! socket: bounded, and without anything that would break a log line. Pure.

use std::fmt;

use serde::Deserialize;

use crate::cni::error::code;

/// The longest name of a pod, a namespace or a container.
const NAME: usize = 253;
/// What is kept of a text for people, in characters.
const TEXT: usize = 1024;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum Command {
    Add,
    Check,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Native,
    Nft,
    Legacy,
    Plain,
}

/// What the plugin did.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub struct Record {
    pub level: Level,
    pub command: Command,
    namespace: String,
    pod: String,
    container_id: String,
    /// What came of it, or why the pod passed untouched.
    pub decision: String,
    #[serde(default)]
    pub backend: Option<Backend>,
    requests: u32,
    pub ms: u64,
    #[serde(default)]
    pub error: Option<Failure>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
pub struct Failure {
    pub code: u32,
    msg: String,
}

impl Record {
    /// Reads one; `None` if it is none.
    pub fn read(bytes: &[u8]) -> Option<Record> {
        let mut record: Record = serde_json::from_slice(bytes).ok()?;
        let names = [&record.namespace, &record.pod, &record.container_id];
        if !names.into_iter().all(|name| is_name(name)) {
            return None;
        }
        record.decision = line(&record.decision);
        if let Some(error) = &mut record.error {
            error.msg = line(&error.msg);
        }
        Some(record)
    }

    /// Whether the API server refused the plugin's token or its rights.
    pub fn is_refusal(&self) -> bool {
        let code = self.error.as_ref().map(|error| error.code);
        code == Some(code::API_REFUSED)
    }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.len() <= NAME && text.bytes().all(fits)
}

/// The text on one line.
fn line(text: &str) -> String {
    let printed = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(TEXT).map(printed).collect()
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
    fn a_record_is_one_line_whatever_it_says() {
        let record = Record::read(RECORD.as_bytes()).unwrap();
        assert_eq!(
            record.to_string(),
            "linkerd-cni: ADD ns/web-1 container abc: failed, 2 requests, 7 ms: \
             no answer of the API server (code 101)"
        );
        assert_eq!(record.level, Level::Error);
        let long = RECORD.replace("no answer", &"é".repeat(3000));
        let long = Record::read(long.as_bytes()).unwrap().to_string();
        assert!(long.chars().count() < TEXT + 100);
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
    fn what_is_no_record_is_refused() {
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
