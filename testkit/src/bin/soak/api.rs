//! The API server through `kubectl proxy`, as a kubectl for each request would take most of the machine's time.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

use crate::pods::command;

/// Bound of a request, as the API server may be stalled.
const PATIENCE: Duration = Duration::from_secs(3);

/// A client of the API server.
pub struct Api {
    proxy: Child,
    base: String,
    agent: Agent,
}

impl Api {
    pub fn new() -> Api {
        let mut proxy = command(&["proxy", "--port=0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("kubectl runs");
        let mut line = String::new();
        let stdout = proxy.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("kubectl proxy prints its address");
        let address = line.trim().rsplit(' ').next().unwrap_or_default();
        let config = Agent::config_builder().timeout_global(Some(PATIENCE));
        let agent = config.http_status_as_error(false).build().into();
        Api { proxy, base: format!("http://{address}"), agent }
    }

    /// The object or list at a path. `None` if it is missing or the API server does not answer.
    pub fn get(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&get(&self.agent, &format!("{}{path}", self.base))?).ok()
    }

    /// Whether the object was created.
    pub fn create(&self, path: &str, object: &Value) -> bool {
        let request = self.agent.post(format!("{}{path}", self.base));
        let response = request.content_type("application/json").send(object.to_string());
        response.is_ok_and(|response| response.status().is_success())
    }

    /// Whether the object is deleted, or is missing already.
    pub fn delete(&self, path: &str) -> bool {
        let response = self.agent.delete(format!("{}{path}", self.base)).call();
        let is_gone = |status: u16| (200..300).contains(&status) || status == 404;
        response.is_ok_and(|response| is_gone(response.status().as_u16()))
    }

    /// Whether `GET url` is answered with 200.
    pub fn is_ok(&self, url: &str) -> bool {
        get(&self.agent, url).is_some()
    }
}

fn get(agent: &Agent, url: &str) -> Option<String> {
    let mut response = agent.get(url).call().ok()?;
    if !response.status().is_success() {
        return None;
    }
    response.body_mut().read_to_string().ok()
}

impl Drop for Api {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}
