//! Verifies what the install steps of a pass left on the node.

use std::time::UNIX_EPOCH;

use super::judge::{Installed, SelfTestState};
use crate::agent::self_test::{SelfTest, TestedPlugin};
use crate::agent::yielding::OtherAgent;
use crate::conflist::{Entry, PLUGIN};
use crate::kube::claims::Claims;
use crate::kube::kubeconfig;
use crate::node::NodeSettings;
use crate::node::binaries::Binaries;

/// Returns the state of the self-test. Starts the self-test if it has not run yet, but only if
/// binary, kubeconfig and network configs are correct and the pass did not change them. `own` is
/// the plugin entry of this agent.
pub fn run_self_test(
    self_test: &mut Option<SelfTest>,
    settings: &NodeSettings,
    own: &Entry,
    installed: &Installed,
) -> SelfTestState {
    if !installed.is_settled() {
        return SelfTestState::NotStarted;
    }
    let Some(self_test) = self_test else {
        return SelfTestState::NotStarted;
    };
    let Some(tested) = tested_plugin(settings, own, installed) else {
        return SelfTestState::NotStarted;
    };
    match self_test.outcome(tested) {
        Some(outcome) => SelfTestState::Ended(outcome.clone()),
        None => SelfTestState::Running,
    }
}

/// Returns the plugin to test: the binary and the entry that are in use. `None` if the binary is not
/// executable.
fn tested_plugin(
    settings: &NodeSettings,
    own: &Entry,
    installed: &Installed,
) -> Option<TestedPlugin> {
    let dir = match installed.kept.agent {
        None | Some(OtherAgent::Newer) => &settings.bin_dir,
        // Upstream's plugin on the host cannot be tested, because it runs the node's iptables,
        // which is not in this container. So this agent's plugin in the image is tested instead.
        Some(OtherAgent::Upstream) => &settings.image_bin_dir,
    };
    let binary = Binaries::executable_stamp(&dir.join(PLUGIN))?;
    let entry = match &installed.configs.yielded {
        Some(yielded) => &yielded.entry,
        None => own,
    };
    Some(TestedPlugin { dir: dir.clone(), binary, entry: entry.text().to_owned() })
}

/// Returns when the token in the kubeconfig on the host expires, in seconds since 1970. `None` if
/// this is unknown, or if the token never expires.
pub fn token_expiry(settings: &NodeSettings) -> Option<u64> {
    let token = kubeconfig::read(&settings.kubeconfig()).ok()?.token?;
    let expiry = Claims::read(&token)?.expiry()?;
    Some(expiry.duration_since(UNIX_EPOCH).ok()?.as_secs())
}
