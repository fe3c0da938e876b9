//! The requests of the fleet, from the API server's audit log.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::Value;

use crate::objects::node_of;

#[derive(Default)]
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
    pub requests: Vec<Request>,
    pub watches: HashMap<String, SystemTime>,
    rejected_watches: HashSet<String>,
    /// Nodes whose plugin's token was used, so that their agent has written the kubeconfig.
    pub connected: HashSet<usize>,
    /// Nodes by the identifiers of the plugin's tokens that their agents requested.
    tokens: HashMap<Value, usize>,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub received: SystemTime,
    /// When the response ended, or began if it is a watch.
    pub responded: SystemTime,
    /// `None` if the token does not tell the node.
    pub node: Option<usize>,
    pub program: String,
    pub verb: String,
    pub uri: String,
    pub body: Value,
    pub is_plugin: bool,
    pub status: u64,
}

impl AuditLog {
    pub fn new(path: PathBuf) -> AuditLog {
        AuditLog { path, ..AuditLog::default() }
    }

    /// Adds the records that the log got since the last call.
    pub fn read(&mut self) -> anyhow::Result<()> {
        let mut log = File::open(&self.path)?;
        log.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::new(log);
        let mut line = String::new();
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            if !line.ends_with('\n') {
                return Ok(());
            }
            self.offset += line.len() as u64;
            // A killed API server may leave part of a line.
            self.add_record(&serde_json::from_str(&line).unwrap_or_default())?;
        }
    }

    fn add_record(&mut self, record: &Value) -> anyhow::Result<()> {
        let text = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
        let program = text("userAgent").split('/').next().unwrap_or_default().to_owned();
        let id = text("auditID");
        let status = record["responseStatus"]["code"].as_u64();
        // A watch has a second record when it ends. A rejected one may have only the first.
        let is_end_of_watch =
            self.watches.remove(&id).is_some() || self.rejected_watches.remove(&id);
        if is_end_of_watch || !program.starts_with("linkerd") {
            return Ok(());
        }
        let received = humantime::parse_rfc3339(&text("requestReceivedTimestamp"))?;
        if text("stage") == "ResponseStarted" {
            if status == Some(200) {
                self.watches.insert(id, received);
            } else {
                self.rejected_watches.insert(id);
            }
        }
        let user = &record["user"];
        let node = self.node_of_user(user);
        let issued_token =
            &record["annotations"]["authentication.kubernetes.io/issued-credential-id"];
        if let Some(node) = node
            && !issued_token.is_null()
        {
            self.tokens.insert(issued_token.clone(), node);
        }
        let is_plugin = user["username"].as_str().is_some_and(|name| name.ends_with("-plugin"));
        if let Some(node) = node
            && is_plugin
        {
            self.connected.insert(node);
        }
        self.requests.push(Request {
            received,
            responded: humantime::parse_rfc3339(&text("stageTimestamp"))?,
            node,
            program,
            verb: text("verb"),
            uri: text("requestURI"),
            body: record["requestObject"].clone(),
            is_plugin,
            status: status.unwrap_or_default(),
        });
        Ok(())
    }

    /// Returns the node of the user's token. `None` if the token does not tell the node.
    fn node_of_user(&self, user: &Value) -> Option<usize> {
        let node_name = &user["extra"]["authentication.kubernetes.io/node-name"][0];
        if let Some(name) = node_name.as_str()
            && let Some(node) = node_of(name)
        {
            return Some(node);
        }
        let token = &user["extra"]["authentication.kubernetes.io/credential-id"][0];
        self.tokens.get(token).copied()
    }
}

/// Returns the largest number of requests in one second, counted in steps of a tenth of a second.
pub fn peak_per_second(requests: &[Request]) -> usize {
    let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
    for request in requests {
        let time = request.received.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let tenth_of_second = time.as_millis() / 100;
        *counts.entry(tenth_of_second).or_default() += 1;
    }
    let mut peak = 0;
    for begin in counts.keys() {
        let in_one_second: usize = counts.range(begin..&(begin + 10)).map(|(_, count)| count).sum();
        peak = peak.max(in_one_second);
    }
    peak
}
