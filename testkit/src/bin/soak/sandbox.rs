//! Pods as the container runtime has them: what their ADD did, their rules, their connections. Needs no API server.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Directory of the ADD results that libcni caches for the runtime.
const RESULTS: &str = "/var/lib/cni/results";
/// Time after which `nft` is tried again in a netns. The runtime unmounts a netns an instant before it deletes the file.
const AGAIN: Duration = Duration::from_millis(500);

/// A pod's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub address: String,
    pub netns: PathBuf,
    /// Whether the network config that ADD used has the plugin entry.
    pub has_entry: bool,
}

/// The sandboxes of the node by the names of their pods.
pub fn all() -> BTreeMap<String, Sandbox> {
    let entries = fs::read_dir(RESULTS).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with("-eth0"));
    let mut found: Vec<(SystemTime, String, Sandbox)> = files
        .filter_map(|entry| {
            let written = entry.metadata().ok()?.modified().ok()?;
            let (name, sandbox) = parse(&fs::read_to_string(entry.path()).ok()?)?;
            Some((written, name, sandbox))
        })
        .collect();
    // The last one counts: the runtime may not have deleted an earlier sandbox of the pod yet.
    found.sort_by_key(|(written, ..)| *written);
    found.into_iter().map(|(_, name, sandbox)| (name, sandbox)).collect()
}

fn parse(text: &str) -> Option<(String, Sandbox)> {
    let cached: Value = serde_json::from_str(text).ok()?;
    let mut args = cached["cniArgs"].as_array()?.iter();
    let name = args.find(|arg| arg[0] == "K8S_POD_NAME")?[1].as_str()?;
    let result = &cached["result"];
    let address = result["ips"][0]["address"].as_str()?.split('/').next()?;
    let mut interfaces = result["interfaces"].as_array()?.iter();
    let netns = interfaces.find_map(|interface| interface["sandbox"].as_str())?;
    let config = STANDARD.decode(cached["config"].as_str()?).ok()?;
    let sandbox = Sandbox {
        address: address.to_owned(),
        netns: PathBuf::from(netns),
        has_entry: String::from_utf8_lossy(&config).contains("\"linkerd-cni\""),
    };
    Some((name.to_owned(), sandbox))
}

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

impl Sandbox {
    /// The rules in the netns.
    pub fn rules(&self) -> Rules {
        let list = || self.nft(&["list", "ruleset"]);
        let listed = list().or_else(|_| {
            thread::sleep(AGAIN);
            list()
        });
        match listed {
            Ok(text) if text.trim().is_empty() => Rules::Nothing,
            Ok(text) if redirects(&text) => Rules::All,
            Ok(text) => Rules::Other(text),
            Err(_) if !self.netns.exists() => Rules::Gone,
            Err(error) => Rules::Unreadable(error),
        }
    }

    /// Removes the rules, as a seeded bug.
    pub fn flush(&self) {
        if let Err(error) = self.nft(&["flush", "ruleset"]) {
            println!("         the rules of {} are not flushed: {error}", self.address);
        }
    }

    fn nft(&self, args: &[&str]) -> Result<String, String> {
        let netns = format!("--net={}", self.netns.display());
        let output = Command::new("nsenter").arg(netns).arg("nft").args(args).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        output.status.success().then(|| text(&output.stdout)).ok_or_else(|| text(&output.stderr))
    }

    /// What the pod responds on port 8080. `None` if it does not.
    pub fn response(&self) -> Option<String> {
        let address: SocketAddr = format!("{}:8080", self.address).parse().ok()?;
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        (!response.is_empty()).then_some(response)
    }
}

fn redirects(rules: &str) -> bool {
    let wanted = [
        "jump PROXY_INIT_REDIRECT",
        "redirect to :4143",
        "jump PROXY_INIT_OUTPUT",
        "redirect to :4140",
    ];
    wanted.iter().all(|rule| rules.contains(rule))
}
