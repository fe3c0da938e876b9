//! Reads the node's conflist, kubeconfig and plugin binary every 2 ms, as the container runtime
//! could at any instant.

use std::fs;
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
    /// Size of the plugin binary at the first read.
    binary_size: Option<u64>,
    /// The last state that was not allowed, and when it began. `None` if the state is allowed.
    violation: Option<(State, Instant)>,
    pub reads: u64,
}

impl Watched {
    /// Reads the state, and records it as a violation if it is not allowed. Such a state is read
    /// again before, because a file that is being replaced may look missing, and because the outage
    /// of an action may just have ended.
    fn read(&mut self) {
        self.reads += 1;
        let mut state = self.state();
        if !is_allowed(&state) {
            state = self.state();
        }
        if is_allowed(&state) {
            if let Some((state, begin)) = self.violation.take() {
                println!("         {state:?} lasted {:.1?}", begin.elapsed());
            }
            return;
        }
        let is_recorded = self.violation.as_ref().is_some_and(|(last, _)| *last == state);
        if !is_recorded {
            ledger::record_violation(Invariant::Files, format!("{state:?}"));
            self.violation = Some((state, Instant::now()));
        }
    }

    /// Returns the state of the node's files. They also count as damaged if the binary of another
    /// plugin in the conflist is missing, or if the size of the plugin binary has changed.
    fn state(&mut self) -> State {
        let plugins = active::plugins();
        let mut types = plugins.iter().filter_map(|plugin| plugin["type"].as_str());
        if let Some(missing) = types.find(|name| !active::is_program("", name)) {
            return State::Damaged(format!("the conflist names {missing}, which is missing"));
        }
        let state = active::state("");
        if state != State::Installed {
            return state;
        }
        let size = fs::metadata(BINARY).map_or(0, |file| file.len());
        if *self.binary_size.get_or_insert(size) != size {
            return State::Damaged(format!("the plugin binary has {size} bytes"));
        }
        state
    }
}

fn is_allowed(state: &State) -> bool {
    match state {
        State::Installed => true,
        State::NoConflist => outages::is_open(Cause::NoConflist),
        State::Unchained => outages::is_open(Cause::Unchained),
        State::NoKubeconfig => outages::is_open(Cause::NoKubeconfig),
        State::BrokenConflist(_) | State::Damaged(_) => false,
    }
}
