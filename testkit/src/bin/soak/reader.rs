//! Reads the node's conflist, kubeconfig and plugin binary every 2 ms, as the container runtime could at any instant.

use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hasher as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::cluster::active;
use testkit::repeated::Repeated;

use crate::ledger::{Invariant, Ledger};
use crate::outages::{Cause, Outages};

pub const NET_DIR: &str = "/etc/cni/net.d";
pub const BIN_DIR: &str = "/opt/cni/bin";
const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const PERIOD: Duration = Duration::from_millis(2);

/// The node's files at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The active conflist has the plugin entry; kubeconfig and binary are whole.
    Installed,
    /// There is no network config.
    NoConflist,
    /// The active conflist has no plugin entry.
    Unchained,
    /// The active conflist has the plugin entry, and the kubeconfig that it names is missing.
    NoKubeconfig,
    /// A file is damaged, or a plugin of the active conflist is missing.
    Broken(String),
}

impl State {
    /// The outage in which another writer may cause this state. `None` if nobody may.
    fn cause(&self) -> Option<Cause> {
        match self {
            State::NoConflist => Some(Cause::NoConflist),
            State::Unchained => Some(Cause::Unchained),
            State::NoKubeconfig => Some(Cause::NoKubeconfig),
            State::Installed | State::Broken(_) => None,
        }
    }
}

/// Reads until [`Reader::finish`].
pub struct Reader(Repeated<Watched>);

impl Reader {
    pub fn start(ledger: Ledger, outages: Outages) -> Reader {
        let watched = Watched { ledger, outages, binary: Binary::default(), bad: None, reads: 0 };
        Reader(Repeated::start(PERIOD, watched, Watched::read))
    }

    /// Ends the thread and returns the number of reads.
    pub fn finish(self) -> u64 {
        self.0.finish().reads
    }
}

struct Watched {
    ledger: Ledger,
    outages: Outages,
    binary: Binary,
    /// The violation that lasts, and its begin.
    bad: Option<(State, Instant)>,
    reads: u64,
}

impl Watched {
    /// Reads the state, twice if it is not allowed: a file that is replaced between two reads may look missing, and
    /// the outage of an action may have closed meanwhile.
    fn read(&mut self) {
        self.reads += 1;
        let mut state = state(&mut self.binary);
        if !self.is_allowed(&state) {
            state = self::state(&mut self.binary);
        }
        if self.is_allowed(&state) {
            if let Some((bad, begin)) = self.bad.take() {
                println!("         {bad:?} lasted {:.1?}", begin.elapsed());
            }
        } else if self.bad.as_ref().is_none_or(|(bad, _)| *bad != state) {
            self.ledger.violated(Invariant::Files, format!("{state:?}"));
            self.bad = Some((state, Instant::now()));
        }
    }

    fn is_allowed(&self, state: &State) -> bool {
        *state == State::Installed || state.cause().is_some_and(|cause| self.outages.is_open(cause))
    }
}

/// The state of the node now.
pub fn now() -> State {
    state(&mut Binary::default())
}

fn state(binary: &mut Binary) -> State {
    let Some(text) = active::path("").and_then(|path| fs::read_to_string(path).ok()) else {
        return State::NoConflist;
    };
    let Ok(list) = serde_json::from_str::<Value>(&text) else {
        return State::Broken(format!("the conflist is no JSON: {} bytes", text.len()));
    };
    let plugins = list["plugins"].as_array().map_or(&[][..], Vec::as_slice);
    let types: Vec<&str> = plugins.iter().filter_map(|plugin| plugin["type"].as_str()).collect();
    if types.is_empty() {
        return State::Broken(format!("the conflist has no plugins: {} bytes", text.len()));
    }
    let is_program = |name: &&str| {
        let file = fs::metadata(format!("{BIN_DIR}/{name}"));
        file.is_ok_and(|file| file.len() > 0 && file.permissions().mode() & 0o111 != 0)
    };
    if let Some(missing) = types.iter().find(|name| !is_program(name)) {
        return State::Broken(format!("the conflist names {missing}, which is not in {BIN_DIR}"));
    }
    let Some(entry) = plugins.iter().find(|plugin| plugin["type"] == "linkerd-cni") else {
        return State::Unchained;
    };
    if !binary.is_whole() {
        return State::Broken("the plugin binary differs from the first one".to_owned());
    }
    let kubeconfig = entry["kubernetes"]["kubeconfig"].as_str().unwrap_or_default();
    match fs::read_to_string(kubeconfig) {
        Ok(text) if has_token(&text) => State::Installed,
        Ok(text) => State::Broken(format!("the kubeconfig has {} bytes and no token", text.len())),
        Err(_) => State::NoKubeconfig,
    }
}

fn has_token(kubeconfig: &str) -> bool {
    let value = serde_json::from_str::<Value>(kubeconfig).unwrap_or_default();
    value["users"][0]["user"]["token"].as_str().is_some_and(|token| !token.is_empty())
}

/// The plugin binary. Its content is read only when the file is another one than before.
#[derive(Default)]
struct Binary {
    file: Option<(u64, u64, i64, i64)>,
    content: Option<u64>,
}

impl Binary {
    /// Whether the binary is the same, byte for byte, as when it was first read.
    fn is_whole(&mut self) -> bool {
        let Ok(metadata) = fs::metadata(BINARY) else {
            return false;
        };
        let identity = |file: &Metadata| (file.ino(), file.len(), file.mtime(), file.mtime_nsec());
        if self.file == Some(identity(&metadata)) {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(&fs::read(BINARY).unwrap_or_default());
        let content = hasher.finish();
        let is_whole = *self.content.get_or_insert(content) == content;
        self.file = is_whole.then(|| identity(&metadata));
        is_whole
    }
}
