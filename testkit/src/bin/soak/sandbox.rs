//! The rules and the connections of a pod, without the API server.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use testkit::cluster::containers::Sandbox;

/// Time after which `nft` is tried again in a netns. The runtime unmounts a netns an instant before it deletes the file.
const AGAIN: Duration = Duration::from_millis(500);
/// In the rules that redirect TCP, in both directions.
const REDIRECTS: [&str; 4] = [
    "jump PROXY_INIT_REDIRECT",
    "redirect to :4143",
    "jump PROXY_INIT_OUTPUT",
    "redirect to :4140",
];

/// What a pod's netns has.
#[derive(Debug, PartialEq, Eq)]
pub enum Rules {
    /// All that redirect TCP, in both directions.
    All,
    Nothing,
    Other(String),
    /// The netns is there, and `nft` fails in it, with this error.
    Unreadable(String),
    /// The netns is gone.
    Gone,
}

/// The rules in the netns.
pub fn rules(sandbox: &Sandbox) -> Rules {
    let list = || nft(sandbox, &["list", "ruleset"]);
    let listed = list().or_else(|_| {
        thread::sleep(AGAIN);
        list()
    });
    match listed {
        Ok(text) if text.trim().is_empty() => Rules::Nothing,
        Ok(text) if REDIRECTS.iter().all(|rule| text.contains(rule)) => Rules::All,
        Ok(text) => Rules::Other(text),
        Err(_) if !sandbox.netns.exists() => Rules::Gone,
        Err(error) => Rules::Unreadable(error),
    }
}

/// Runs `nft` in the netns. Returns its output or its error.
pub fn nft(sandbox: &Sandbox, args: &[&str]) -> Result<String, String> {
    let netns = format!("--net={}", sandbox.netns.display());
    let output = Command::new("nsenter").arg(netns).arg("nft").args(args).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    output.status.success().then(|| text(&output.stdout)).ok_or_else(|| text(&output.stderr))
}

/// What the pod responds on port 8080. `None` if it does not.
pub fn response(sandbox: &Sandbox) -> Option<String> {
    let address: SocketAddr = format!("{}:8080", sandbox.address).parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    (!response.is_empty()).then_some(response)
}
