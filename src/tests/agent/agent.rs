//! Starts, observes and stops the agent.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time limit of all waits. It is long, because the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// A running agent. Dropping the value kills the agent.
pub struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    pub fn new(child: Child, log: PathBuf) -> Agent {
        Agent { child, log }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Returns whether a SIGSTOP has taken effect.
    pub fn is_stopped(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        status.contains("State:\tT")
    }

    /// Waits until `find` returns a value, and returns that.
    fn until<T>(&mut self, pause: Duration, mut find: impl FnMut(&mut Agent) -> Option<T>) -> T {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            assert!(Instant::now() < end, "{:?}\n{}", self.ready(), self.log());
            thread::sleep(pause);
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.ended().is_some()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until an agent that received SIGTERM starts to uninstall. Also returns if the agent
    /// exits, which it does if SIGTERM arrives before the agent blocks the signal.
    pub fn until_uninstalling(&mut self) {
        self.until(Duration::from_micros(200), |agent| {
            (agent.log().contains("uninstalling") || agent.ended().is_some()).then_some(())
        });
    }

    /// Sends SIGTERM, and returns the exit status.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// Returns the agent's process, if another program such as strace started the agent.
    pub fn child(&self) -> Option<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = fs::read_to_string(path).ok()?;
        let pid = children.split_whitespace().next()?.parse().ok()?;
        Some(Pid::from_raw(pid))
    }

    /// Waits until the agent is ready or has exited. Returns whether it is ready.
    pub fn ready_or_dead(&mut self) -> bool {
        self.until(Duration::from_millis(1), |agent| match agent.ended() {
            Some(_) => Some(false),
            None => agent.log().contains("is installed and verified").then_some(true),
        })
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn wait(&mut self) -> Option<i32> {
        self.until(Duration::from_millis(2), Agent::ended).code()
    }

    pub fn until_ready(&mut self) {
        self.until(Duration::from_millis(3), |agent| (agent.ready().0 == 200).then_some(()));
    }

    pub fn ready(&self) -> (u16, String) {
        self.get("/ready")
    }

    /// Returns the HTTP status and the body. The status is 0 if the agent does not listen yet.
    pub fn get(&self, path: &str) -> (u16, String) {
        match self.address() {
            Some(address) => get(address, path).unwrap(),
            None => (0, String::new()),
        }
    }

    /// As [`Agent::get`]. Returns `None` if the agent does not listen, or ends meanwhile.
    pub fn try_get(&self, path: &str) -> Option<(u16, String)> {
        get(self.address()?, path)
    }

    /// Returns the value of a metric, or 0 if the agent does not export it. `name` includes the
    /// labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").1;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Returns the port on which the agent listens. Panics if it does not listen yet.
    pub fn port(&self) -> u16 {
        self.address().unwrap().port()
    }

    fn address(&self) -> Option<SocketAddr> {
        let log = self.log();
        let address =
            log.lines().find_map(|line| line.split_once("/live, /ready and /metrics on "));
        Some(address?.1.parse().unwrap())
    }
}

/// Returns the HTTP status and the body. Returns `None` if nothing listens at the address.
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Some((status.unwrap_or(0), body.to_owned()))
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}
