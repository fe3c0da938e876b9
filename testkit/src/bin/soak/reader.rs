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
    size: Option<u64>,
    bad: Option<(State, Instant)>,
    pub reads: u64,
}

impl Watched {
    /// Reads a state that is not allowed twice: a file that is being replaced may look missing, and
    /// the outage of an action may just have ended.
    fn read(&mut self) {
        self.reads += 1;
        let mut state = self.state();
        if !is_allowed(&state) {
            state = self.state();
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

    /// Returns the state of the node's files. A missing plugin of the conflist is also damage, and
    /// so is another size of the plugin binary than the first.
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
        if *self.size.get_or_insert(size) != size {
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
