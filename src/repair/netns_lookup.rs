//! Finds a pod's netns: by the CNI result that the runtime cached at the pod's ADD, else by
//! the pod's IP address. Always checks the address, because cached results and netns files
//! can outlive their pod.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use serde_json::Value;

use super::settings::Settings;
use super::stranded::StrandedPod;
use crate::files;
use crate::netns::{self, link};

/// Longest time for listing the addresses of one netns.
const LIST_ADDRESSES_TIMEOUT: Duration = Duration::from_secs(2);

/// The netns of each pod of the node. Later changes on the node are not noticed.
pub struct NetnsLookup {
    /// Directory with a file for the netns of each pod.
    netns_dir: PathBuf,
    /// Netns paths from cached results. The key is the pod's UID, or `namespace/name` if the
    /// runtime does not pass the UID to plugins.
    by_pod: HashMap<String, Vec<PathBuf>>,
    /// All netns paths by IP address. Read when the first pod is not found by its cached result;
    /// `None` before.
    by_address: Option<HashMap<IpAddr, Vec<PathBuf>>>,
}

impl NetnsLookup {
    /// Reads the runtime's cached results. Without a readable cache, the pods are found by
    /// their addresses.
    pub fn read(settings: &Settings) -> Self {
        let netns_dir = settings.mount_prefix.join("var/run/netns");
        let mut by_pod: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for path in entries(&settings.mount_prefix.join("var/lib/cni/results")) {
            if let Ok((text, _)) = files::read(&path)
                && let Some((pod, netns)) = cached_add(&text)
                && let Some(name) = Path::new(&netns).file_name()
            {
                by_pod.entry(pod).or_default().push(netns_dir.join(name));
            }
        }
        NetnsLookup { netns_dir, by_pod, by_address: None }
    }

    /// Returns the path of the pod's netns, or why it is unknown.
    pub fn find(&mut self, pod: &StrandedPod) -> Result<PathBuf, String> {
        let address = pod.address.ok_or("the pod has no IP address yet")?;
        let full_name = format!("{}/{}", pod.namespace, pod.name);
        let keys = [&pod.uid, pod.static_uid.as_ref().unwrap_or(&pod.uid), &full_name];
        let by_pod = &self.by_pod;
        for path in keys.iter().filter_map(|key| by_pod.get(*key)).flatten() {
            if addresses(path)?.contains(&address) {
                return Ok(path.clone());
            }
        }
        let dir = &self.netns_dir;
        let by_address = self.by_address.get_or_insert_with(|| scan(dir));
        match by_address.get(&address).map(Vec::as_slice) {
            None | Some([]) => {
                Err(format!("no network namespace in {} has the pod's address", dir.display()))
            }
            // The address may belong to a newer pod whose status has not reached the API
            // server yet.
            Some([path]) => {
                let mut others = by_pod.iter().filter(|(key, _)| !keys.contains(key));
                match others.any(|(_, paths)| paths.contains(path)) {
                    true => Err(format!(
                        "the pod's address {address} is in another pod's network namespace"
                    )),
                    false => Ok(path.clone()),
                }
            }
            // Rules in the netns of the wrong pod would break that pod.
            Some(_) => Err(format!("several network namespaces have the pod's address {address}")),
        }
    }
}

/// Returns the pod's key in [`NetnsLookup::by_pod`] and the host's path of its netns, from the text of a
/// file that libcni writes for the result of one ADD (`cachedInfo` in
/// <https://github.com/containernetworking/cni/blob/main/libcni/api.go>).
fn cached_add(text: &[u8]) -> Option<(String, String)> {
    let cached: Value = serde_json::from_slice(text).ok()?;
    // Pairs of name and value.
    let args = cached["cniArgs"].as_array()?;
    let arg = |key: &str| args.iter().find(|arg| arg[0] == key)?[1].as_str();
    let pod = match arg("K8S_POD_UID").filter(|uid| !uid.is_empty()) {
        Some(uid) => uid.to_owned(),
        None => format!("{}/{}", arg("K8S_POD_NAMESPACE")?, arg("K8S_POD_NAME")?),
    };
    let path = |value: &Value| Some(value.as_str()?.to_owned()).filter(|path| !path.is_empty());
    // Results of older libcni versions have no `netns`.
    let netns = path(&cached["netns"]).or_else(|| {
        let interfaces = cached["result"]["interfaces"].as_array()?;
        interfaces.iter().find_map(|interface| path(&interface["sandbox"]))
    })?;
    Some((pod, netns))
}

fn scan(dir: &Path) -> HashMap<IpAddr, Vec<PathBuf>> {
    let mut found: HashMap<IpAddr, Vec<PathBuf>> = HashMap::new();
    for path in entries(dir) {
        for address in addresses(&path).unwrap_or_default() {
            let paths = found.entry(address).or_default();
            if paths.last() != Some(&path) {
                paths.push(path.clone());
            }
        }
    }
    found
}

/// Paths of the files in a directory; empty if the directory cannot be read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Addresses, without loopback, of the netns at `path`. Empty if the netns cannot be
/// entered or is this process's own. Fails only if there are too many.
fn addresses(path: &Path) -> Result<Vec<IpAddr>, String> {
    if netns::is_own(path) {
        return Ok(Vec::new());
    }
    let listed = netns::run(path, LIST_ADDRESSES_TIMEOUT, link::addresses);
    let mut addresses = match listed {
        Ok(Err(Errno::EFBIG)) => {
            return Err("the pod's network namespace has too many addresses to list".to_owned());
        }
        Ok(listed) => listed.unwrap_or_default(),
        Err(error) => {
            tracing::debug!("{error}");
            Vec::new()
        }
    };
    addresses.retain(|address| !address.is_loopback());
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::chart::yaml;

    use super::*;

    #[test]
    fn a_cached_result_names_pod_and_netns_in_old_and_new_libcni_versions() {
        let args = r#"[["IgnoreUnknown","1"],["K8S_POD_UID","u-1"],["K8S_POD_NAME","web"]]"#;
        let result = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/var/run/netns/b"}]}"#;
        for case in yaml(include_str!("tests.yaml"))["cached"].as_array().unwrap() {
            let text = case[0].as_str().unwrap().replace("ARGS", args).replace("RESULT", result);
            assert_eq!(json!(cached_add(text.as_bytes())), case[1], "{case}");
        }
    }
}
