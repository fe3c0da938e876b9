//! Finds a pod's netns by the CNI result that the runtime cached at the pod's ADD. Always checks
//! that the netns has the pod's address: cached results and netns files can outlive their pod.
//!
//! The runtime mounts each netns on a file of its own. This container has only the mounts of the
//! time when it started (docs/decisions/0012-netns-mounts-without-propagation.md). The file of a
//! netns that was mounted later is empty in this container, until the container restarts.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use serde_json::Value;

use super::stranded::StrandedPod;
use crate::files;
use crate::netns::{Netns, link};
use crate::repair::settings::Settings;

/// Directory of the cached results on the host: libcni's default.
const RESULTS_DIR: &str = "var/lib/cni/results";
const LIST_ADDRESSES_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time between the mounts of a container and the start of its process.
const START_BUDGET: Duration = Duration::from_secs(30);

/// Why the netns of a pod is unknown.
#[derive(Debug, thiserror::Error)]
pub enum NetnsUnknown {
    #[error("the pod has no IP address yet")]
    NoAddress,
    #[error("the pod's network namespace has too many addresses to list")]
    TooManyAddresses,
    #[error(
        "the pod's network namespace was mounted after this container had started, which shows \
         only the earlier ones"
    )]
    MountedLater { at: SystemTime },
    #[error(
        "no CNI result of the pod in /{RESULTS_DIR} leads to a network namespace with its address"
    )]
    NoResult,
}

/// The netns paths of the node's pods, from the runtime's cached results, which are read once.
pub struct NetnsLookup {
    /// Netns paths from cached results. The key is the pod's UID, or `namespace/name` if the
    /// runtime does not pass the UID to plugins.
    by_pod: HashMap<String, Vec<PathBuf>>,
    /// Start of this process, by the node's present clock.
    started: SystemTime,
}

impl NetnsLookup {
    pub fn read(settings: &Settings) -> Self {
        let netns_dir = settings.mount_prefix.join("var/run/netns");
        let results_dir = settings.mount_prefix.join(RESULTS_DIR);
        let mut by_pod: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for entry in fs::read_dir(results_dir).into_iter().flatten().flatten() {
            let Ok((text, _)) = files::read(&entry.path()) else { continue };
            let Some((pod, netns)) = cached_add(&text) else { continue };
            let Some(name) = Path::new(&netns).file_name() else { continue };
            by_pod.entry(pod).or_default().push(netns_dir.join(name));
        }
        NetnsLookup { by_pod, started: settings.started_at() }
    }

    /// Opens the pod's netns. Never returns the netns of another pod, because rules that are
    /// installed there would break that pod.
    pub fn find(&self, pod: &StrandedPod) -> Result<Netns, NetnsUnknown> {
        let address = pod.facts.address.ok_or(NetnsUnknown::NoAddress)?;
        let mut unknown = NetnsUnknown::NoResult;
        for path in self.paths(pod) {
            let Some(netns) = open_netns_of_pod(path) else { continue };
            if let Some(at) = self.mounted_later(&netns) {
                unknown = NetnsUnknown::MountedLater { at };
                continue;
            }
            if has_address(&netns, address)? {
                return Ok(netns);
            }
        }
        Err(unknown)
    }

    /// Returns when the runtime made the netns file, if a netns may have been mounted on the file
    /// after this container got its mounts. `None` for a netns, and for an older file without a
    /// netns, which the runtime left behind.
    fn mounted_later(&self, netns: &Netns) -> Option<SystemTime> {
        let made = netns.made_without_netns()?;
        if made + START_BUDGET < self.started {
            return None;
        }
        Some(made)
    }

    /// Returns the netns paths in the pod's cached results.
    fn paths(&self, pod: &StrandedPod) -> impl Iterator<Item = &PathBuf> {
        let StrandedPod { found, facts } = pod;
        let uid = found.uid.clone();
        let static_uid = facts.static_uid.clone().unwrap_or_else(|| uid.clone());
        let full_name = format!("{}/{}", found.namespace, found.name);
        [uid, static_uid, full_name].into_iter().filter_map(|key| self.by_pod.get(&key)).flatten()
    }
}

/// Opens a netns that may be a pod's. The controller's own netns is no pod's, even if the pod's
/// status names its address.
fn open_netns_of_pod(path: &Path) -> Option<Netns> {
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(error) => {
            tracing::debug!("{error}");
            return None;
        }
    };
    if netns.is_current() {
        return None;
    }
    Some(netns)
}

/// Returns whether the netns has the address. A netns whose addresses cannot be listed does not
/// count as having it. Fails only if the netns has too many addresses.
fn has_address(netns: &Netns, address: IpAddr) -> Result<bool, NetnsUnknown> {
    match netns.run(LIST_ADDRESSES_TIMEOUT, link::addresses) {
        Ok(Ok(addresses)) => Ok(addresses.contains(&address)),
        Ok(Err(Errno::EFBIG)) => Err(NetnsUnknown::TooManyAddresses),
        Ok(Err(_)) => Ok(false),
        Err(error) => {
            tracing::debug!("{error}");
            Ok(false)
        }
    }
}

/// Returns the pod's key in [`NetnsLookup::by_pod`] and the host's path of its netns, from the text
/// of a file that libcni writes for the result of one ADD (`cachedInfo` in
/// <https://github.com/containernetworking/cni/blob/main/libcni/api.go>).
fn cached_add(text: &[u8]) -> Option<(String, String)> {
    let cached: Value = serde_json::from_slice(text).ok()?;
    let pod = pod_key(cached["cniArgs"].as_array()?)?;
    let netns = netns_path(&cached)?;
    Some((pod, netns.to_owned()))
}

/// Returns the pod's UID, or `namespace/name` if the runtime did not pass the UID.
fn pod_key(args: &[Value]) -> Option<String> {
    if let Some(uid) = argument(args, "K8S_POD_UID")
        && !uid.is_empty()
    {
        return Some(uid.to_owned());
    }
    let namespace = argument(args, "K8S_POD_NAMESPACE")?;
    let name = argument(args, "K8S_POD_NAME")?;
    Some(format!("{namespace}/{name}"))
}

fn netns_path(cached: &Value) -> Option<&str> {
    if let Some(netns) = non_empty(&cached["netns"]) {
        return Some(netns);
    }
    // Results of older libcni versions have no `netns`.
    let interfaces = cached["result"]["interfaces"].as_array()?;
    interfaces.iter().find_map(|interface| non_empty(&interface["sandbox"]))
}

/// Returns the value of `name` in these pairs of name and value.
fn argument<'v>(args: &'v [Value], name: &str) -> Option<&'v str> {
    let pair = args.iter().find(|pair| pair[0] == name)?;
    pair[1].as_str()
}

fn non_empty(value: &Value) -> Option<&str> {
    let text = value.as_str()?;
    if text.is_empty() {
        return None;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::Ipv4Addr;
    use std::os::unix::fs::symlink;

    use serde::Deserialize;
    use tempfile::TempDir;
    use testkit::table::rows_of;

    use super::*;

    /// The runtime may mount a netns on the file at any time.
    #[test]
    fn a_file_opened_before_its_netns_was_mounted_counts_as_mounted_later() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("netns");
        File::create(&path).unwrap();
        let empty = Netns::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        symlink("/proc/self/ns/net", &path).unwrap();
        let mounted = Netns::open(&path).unwrap();
        let lookup = NetnsLookup { by_pod: HashMap::new(), started: SystemTime::now() };
        assert!(lookup.mounted_later(&empty).is_some());
        assert_eq!(lookup.mounted_later(&mounted), None);
    }

    /// A pod's status may have any address, and a netns file may have been replaced, so that the
    /// controller's own netns may seem to match.
    #[test]
    fn the_netns_of_the_controller_itself_is_never_a_pods() {
        let own = vec![PathBuf::from("/proc/self/ns/net")];
        let by_pod = HashMap::from([("u-1".to_owned(), own)]);
        let lookup = NetnsLookup { by_pod, started: SystemTime::now() };
        let mut pod = StrandedPod::default();
        pod.found.uid = "u-1".into();
        pod.facts.address = Some(Ipv4Addr::LOCALHOST.into());
        assert!(matches!(lookup.find(&pod), Err(NetnsUnknown::NoResult)));
    }

    #[derive(Deserialize)]
    struct Row {
        text: String,
        cached: Option<(String, String)>,
    }

    #[test]
    fn a_cached_result_of_any_libcni_version_names_pod_and_netns() {
        let args = r#"[["IgnoreUnknown","1"],["K8S_POD_UID","u-1"],["K8S_POD_NAME","web"]]"#;
        let interfaces = r#"[{"name":"cni0"},{"name":"eth0","sandbox":"/var/run/netns/b"}]"#;
        let result = format!(r#"{{"cniVersion":"1.0.0","interfaces":{interfaces}}}"#);
        for (name, row) in rows_of::<Row>(include_str!("tests.yaml"), "cached") {
            let text = row.text.replace("ARGS", args).replace("RESULT", &result);
            assert_eq!(cached_add(text.as_bytes()), row.cached, "{name}");
        }
    }
}
