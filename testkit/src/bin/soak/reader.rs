//! Reads the node's conflist, kubeconfig and plugin binary every 2 ms, as the container runtime could at any instant.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use testkit::cluster::active::{self, State};
use testkit::repeated::Repeated;

use crate::ledger::{self, Invariant};
use crate::outages::{self, Cause};

const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const PERIOD: Duration = Duration::from_millis(2);

pub fn start() -> Repeated<Watched> {
    Repeated::start(PERIOD, Watched::default(), Watched::read)
}

#[derive(Default)]
pub struct Watched {
    binary: Binary,
    /// The violation that lasts, and its begin.
    bad: Option<(State, Instant)>,
    /// Number of reads.
    pub reads: u64,
}

impl Watched {
    /// Reads the state, twice if it is not allowed: a file that is replaced between two reads may look missing, and
    /// the outage of an action may have closed meanwhile.
    fn read(&mut self) {
        self.reads += 1;
        let mut state = state(&mut self.binary);
        if !is_allowed(&state) {
            state = self::state(&mut self.binary);
        }
        if is_allowed(&state) {
            if let Some((bad, begin)) = self.bad.take() {
                println!("         {bad:?} lasted {:.1?}", begin.elapsed());
            }
        } else if self.bad.as_ref().is_none_or(|(bad, _)| *bad != state) {
            ledger::violated(Invariant::Files, format!("{state:?}"));
            self.bad = Some((state, Instant::now()));
        }
    }
}

/// Whether the plugin is installed, or another writer may have caused the state.
fn is_allowed(state: &State) -> bool {
    match state {
        State::Installed => true,
        State::NoConflist => outages::is_open(Cause::NoConflist),
        State::Unchained => outages::is_open(Cause::Unchained),
        State::NoKubeconfig => outages::is_open(Cause::NoKubeconfig),
        State::BrokenConflist(_) | State::Damaged(_) => false,
    }
}

/// The state of the node now. A plugin of the active conflist that is missing, and a plugin binary that changes, are
/// damages, too.
fn state(binary: &mut Binary) -> State {
    let plugins = active::plugins();
    let mut types = plugins.iter().filter_map(|plugin| plugin["type"].as_str());
    if let Some(missing) = types.find(|name| !active::is_program("", name)) {
        return State::Damaged(format!("the conflist names {missing}, which is missing"));
    }
    match active::state("") {
        State::Installed if !binary.is_whole() => {
            State::Damaged("the plugin binary differs from the first one".to_owned())
        }
        state => state,
    }
}

/// The plugin binary. Its content is read only when the file is another one than before.
#[derive(Default)]
struct Binary {
    file: Option<(u64, u64, i64, i64)>,
    content: Option<Vec<u8>>,
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
        let content = fs::read(BINARY).unwrap_or_default();
        let is_whole = *self.content.get_or_insert_with(|| content.clone()) == content;
        self.file = is_whole.then(|| identity(&metadata));
        is_whole
    }
}
