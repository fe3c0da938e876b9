//! Requests to the API server through `kubectl proxy`. A process of kubectl for each request would
//! take most of the machine's time.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use testkit::child::KilledOnDrop;
use testkit::cluster::kubectl::command;
use ureq::Agent;

/// Longest time of a request. It is limited, because an action may have stopped the API server.
const TIMEOUT: Duration = Duration::from_secs(3);

pub struct Api {
    _proxy: KilledOnDrop,
    base: String,
    agent: Agent,
}

impl Api {
    pub fn new() -> Api {
        let mut proxy = command("proxy --port=0");
        let proxy = proxy.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut proxy = KilledOnDrop(proxy.expect("kubectl runs"));
        let mut line = String::new();
        let stdout = proxy.0.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("kubectl proxy prints its address");
        let address = line.trim().rsplit(' ').next().unwrap_or_default();
        let config = Agent::config_builder().timeout_global(Some(TIMEOUT));
        let agent = config.http_status_as_error(false).build().into();
        Api { _proxy: proxy, base: format!("http://{address}"), agent }
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        let mut response = self.agent.get(format!("{}{path}", self.base)).call().ok()?;
        serde_json::from_reader(response.body_mut().as_reader()).ok()
    }

    pub fn create(&self, path: &str, object: &Value) -> bool {
        let request = self.agent.post(format!("{}{path}", self.base));
        let response = request.content_type("application/json").send(object.to_string());
        response.is_ok_and(|response| response.status().is_success())
    }

    /// Deletes an object. Returns whether the API server has accepted the deletion, or does not
    /// have the object.
    pub fn delete(&self, path: &str) -> bool {
        let response = self.agent.delete(format!("{}{path}", self.base)).call();
        response.is_ok_and(|response| response.status().is_success() || response.status() == 404)
    }

    pub fn is_ok(&self, url: &str) -> bool {
        self.agent.get(url).call().is_ok_and(|response| response.status().is_success())
    }
}
