//! Which network namespace is a pod's: by what the runtime remembers of its ADD, else
//! by the address. Always proven by the address, since names and files outlive pods.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use serde::Deserialize;

use super::host::Host;
use crate::kube::types::Pod;
use crate::netns;

/// How long listing the addresses of one namespace may take.
const LOOK: Duration = Duration::from_secs(2);

/// Larger files are none of libcni's. One has the network's configuration in it.
const RESULT_LIMIT: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the pod has no address yet")]
    NoAddress,
    #[error("no namespace in {} has the pod's address", dir.display())]
    NotFound { dir: PathBuf },
    #[error("several namespaces have the pod's address {address}")]
    Ambiguous { address: IpAddr },
    #[error("the pod's address {address} is in another pod's namespace")]
    Anothers { address: IpAddr },
}

/// The namespaces of the node's pods, as they were when this was made.
pub struct Sandboxes {
    host: Host,
    /// By pod UID, or by namespace and name where the runtime does not tell the UID.
    remembered: HashMap<String, Vec<PathBuf>>,
    /// All namespaces by address, once somebody has to be looked for that way.
    scanned: Option<HashMap<IpAddr, Vec<PathBuf>>>,
}

impl Sandboxes {
    /// Reads what the runtime remembers. Where it remembers nothing, or not as libcni
    /// does, there are still the addresses.
    pub fn read(host: &Host) -> Self {
        let mut remembered: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for path in entries(&host.results) {
            let small = fs::metadata(&path).is_ok_and(|file| file.len() <= RESULT_LIMIT);
            let text = if small { fs::read(&path).ok() } else { None };
            let result = text.and_then(|text| serde_json::from_slice::<Cached>(&text).ok());
            if let Some((pod, namespace)) = result.as_ref().and_then(Cached::pod)
                && let Some(name) = Path::new(namespace).file_name()
            {
                let here = host.namespaces.join(name);
                remembered.entry(pod).or_default().push(here);
            }
        }
        Sandboxes {
            host: host.clone(),
            remembered,
            scanned: None,
        }
    }

    /// The path of the pod's namespace.
    pub fn find(&mut self, pod: &Pod) -> Result<PathBuf, Error> {
        let ips = pod.status.ips.iter();
        let wanted: Vec<IpAddr> = ips.filter_map(|ip| ip.ip.parse().ok()).collect();
        let Some(&address) = wanted.first() else {
            return Err(Error::NoAddress);
        };
        let metadata = &pod.metadata;
        let named = format!("{}/{}", metadata.namespace, metadata.name);
        let keys = [&metadata.uid, &named];
        let remembered = &self.remembered;
        let mut candidates = keys.iter().filter_map(|key| remembered.get(*key)).flatten();
        if let Some(path) = candidates.find(|path| addresses(path).contains(&address)) {
            return Ok(path.clone());
        }
        let dir = &self.host.namespaces;
        let scanned = self.scanned.get_or_insert_with(|| scan(dir));
        match scanned.get(&address).map(Vec::as_slice) {
            None | Some([]) => Err(Error::NotFound { dir: dir.clone() }),
            // The address may have gone to a newer pod without the API server knowing yet.
            Some([path]) => {
                let mut others = remembered.iter().filter(|(key, _)| !keys.contains(key));
                match others.any(|(_, paths)| paths.contains(path)) {
                    true => Err(Error::Anothers { address }),
                    false => Ok(path.clone()),
                }
            }
            // Nobody can say which one is the pod's, and a guess could break another.
            Some(_) => Err(Error::Ambiguous { address }),
        }
    }
}

/// What libcni keeps of one ADD.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    /// Newer versions only.
    #[serde(default)]
    netns: Option<String>,
    #[serde(default)]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default)]
    result: Option<CachedResult>,
}

#[derive(Deserialize)]
struct CachedResult {
    #[serde(default)]
    interfaces: Option<Vec<Interface>>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    sandbox: String,
}

impl Cached {
    /// What the pod is known by, and the host's path of its namespace.
    fn pod(&self) -> Option<(String, &str)> {
        let args = self.cni_args.as_ref()?;
        let arg = |key: &str| {
            let found = args.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.as_str())
        };
        let pod = match arg("K8S_POD_UID").filter(|uid| !uid.is_empty()) {
            Some(uid) => uid.to_owned(),
            None => format!("{}/{}", arg("K8S_POD_NAMESPACE")?, arg("K8S_POD_NAME")?),
        };
        let interfaces = self.result.as_ref().and_then(|r| r.interfaces.as_ref());
        let mut sandboxes = interfaces.into_iter().flatten().map(|i| &*i.sandbox);
        let namespace = match self.netns.as_deref() {
            Some(path) if !path.is_empty() => path,
            _ => sandboxes.find(|path| !path.is_empty())?,
        };
        Some((pod, namespace))
    }
}

fn scan(dir: &Path) -> HashMap<IpAddr, Vec<PathBuf>> {
    let mut found: HashMap<IpAddr, Vec<PathBuf>> = HashMap::new();
    for path in entries(dir) {
        for address in addresses(&path) {
            let paths = found.entry(address).or_default();
            if paths.last() != Some(&path) {
                paths.push(path.clone());
            }
        }
    }
    found
}

/// The files of a directory; none if it is not there.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The addresses of the namespace at `path` that a pod may be known by; none if it
/// cannot be entered, or is our own.
fn addresses(path: &Path) -> Vec<IpAddr> {
    if netns::is_own(path) {
        return Vec::new();
    }
    let listed = netns::run(path, LOOK, || {
        let interfaces = getifaddrs().into_iter().flatten();
        let addresses = interfaces.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        });
        addresses.filter(|address| !address.is_loopback()).collect()
    });
    listed.unwrap_or_else(|error| {
        tracing::debug!("{error}");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod_of(text: &str) -> Option<(String, String)> {
        let cached: Cached = serde_json::from_str(text).ok()?;
        cached.pod().map(|(pod, path)| (pod, path.to_owned()))
    }

    #[test]
    fn a_cached_result_tells_pod_and_namespace_in_old_and_new_form() {
        let args = r#"[["IgnoreUnknown","1"],["K8S_POD_UID","u-1"],["K8S_POD_NAME","web"]]"#;
        let named = r#"[["K8S_POD_NAMESPACE","ns"],["K8S_POD_NAME","web"]]"#;
        let result = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/var/run/netns/b"}]}"#;
        for (name, text, expected) in [
            (
                "new",
                format!(r#"{{"netns":"/var/run/netns/a","cniArgs":{args},"result":{result}}}"#),
                Some(("u-1", "/var/run/netns/a")),
            ),
            (
                "old",
                format!(r#"{{"kind":"cniCacheV1","cniArgs":{args},"result":{result}}}"#),
                Some(("u-1", "/var/run/netns/b")),
            ),
            (
                "without UID",
                format!(r#"{{"cniArgs":{named},"result":{result}}}"#),
                Some(("ns/web", "/var/run/netns/b")),
            ),
            ("no pod", format!(r#"{{"result":{result}}}"#), None),
            ("no namespace", format!(r#"{{"cniArgs":{args}}}"#), None),
            ("no result of libcni", "[]".into(), None),
        ] {
            let expected = expected.map(|(pod, path)| (pod.to_owned(), path.to_owned()));
            assert_eq!(pod_of(&text), expected, "{name}");
        }
    }
}
