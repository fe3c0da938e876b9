//! Compares the rules in a pod's netns with those that the pod started with. Leaves out pods without
//! a proxy, and pods that the plugin skips by namespace or name.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use super::host_dirs::{self, HostDirs};
use super::in_place::{self, PodRules};
use super::pod_netns::{self, NetnsLookup};
use crate::cni;
use crate::cni::args::PodRef;
use crate::config::Config;
use crate::failure::Failure;
use crate::firewall::Survey;
use crate::kube::types::{Namespace, Pod, Service};
use crate::kube::{self, Client};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::facts::{API_SERVICE, ClusterLookup, facts, namespace_path};
use crate::pod::mesh::is_meshed;

/// Why a pod cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the plugin's configuration: {0}")]
    Config(#[from] host_dirs::Error),
    #[error("cannot determine the pod's redirect rules: {0}")]
    Redirect(#[from] cni::Error),
    #[error("cannot find the pod's network namespace: {0}")]
    Netns(#[from] pod_netns::Error),
    #[error(transparent)]
    Rules(#[from] in_place::Error),
}

/// Result of inspecting a pod.
#[derive(Debug)]
pub enum Inspection {
    /// The plugin installs no rules for this pod.
    NotApplicable,
    /// All rules are present, and are today's, or it is unknown which are today's.
    Complete,
    /// The pod has the rules that it started with. The plugin would install these now.
    Drifted(PodRules),
    /// These rules, as lines of `iptables-save`, are missing or changed.
    Missing(PodRules, Vec<String>),
    /// The netns has a table of `iptables-legacy`, whose rules only the host's iptables can read, or
    /// too many rules. See [`survey`](crate::firewall::survey).
    Unreadable,
}

/// Inspects pods. Reads the runtime's cache and each API object only once: create a new inspector
/// for each audit or repair.
pub struct Inspector {
    config: Config,
    netns_lookup: NetnsLookup,
    objects: ReadObjects,
}

/// Where the API server reads namespaces and Services from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// Its cache, which may be stale. For audits, which read many objects. The worker
    /// inspects each pod again with [`ReadFrom::Etcd`] before a repair.
    Cache,
    /// etcd, which is always up to date.
    Etcd,
}

impl Inspector {
    /// Takes the plugin's configuration, and reads the runtime's cache of CNI results.
    pub fn new(config: Config, host: &HostDirs, read_from: ReadFrom) -> Self {
        Inspector {
            config,
            netns_lookup: NetnsLookup::read(host),
            objects: ReadObjects { read_from, namespaces: BTreeMap::new(), api_service: None },
        }
    }

    /// Compares the pod's rules with those that it started with. Changes nothing.
    pub fn inspect(&mut self, client: &Client, pod: Pod) -> Result<Inspection, Error> {
        let name = PodRef {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        };
        // The containers decide, not the annotations: `kubectl debug --copy-to` removes them.
        let is_skipped = self.config.filter.skip_reason(&name, None).is_some();
        if self.config.simulate || is_skipped || !is_meshed(&pod) {
            return Ok(Inspection::NotApplicable);
        }
        let netns = self.netns_lookup.find(&pod)?;
        let mut lookup = ObjectReader { client, objects: &mut self.objects };
        let resolved = match facts(pod, &name, &mut lookup) {
            Ok(Decision::Skip(_)) => return Ok(Inspection::NotApplicable),
            Ok(Decision::Redirect(facts)) => self.config.resolve(&facts),
            Err(error) => Err(error),
        };
        let today = resolved.as_ref().ok();
        let today = today.map(|resolved| (resolved.redirect.clone(), resolved.ipv6));
        Ok(match in_place::survey(&netns, today)? {
            Survey::Complete => Inspection::Complete,
            Survey::Drifted(origin) => Inspection::Drifted(PodRules { netns, origin }),
            Survey::Missing(origin, missing) => {
                Inspection::Missing(PodRules { netns, origin }, missing)
            }
            Survey::Unreadable => resolved.map(|_| Inspection::Unreadable)?,
        })
    }
}

/// API objects read so far. Errors are kept, too: 100 pods of one namespace must not cause
/// 100 requests that the API server rejects.
struct ReadObjects {
    read_from: ReadFrom,
    /// Annotations of each namespace.
    namespaces: BTreeMap<String, Result<Annotations, cni::Error>>,
    api_service: Option<Result<Service, cni::Error>>,
}

/// Reads each API object once.
struct ObjectReader<'a> {
    client: &'a Client,
    objects: &'a mut ReadObjects,
}

impl ObjectReader<'_> {
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, cni::Error> {
        let path = match self.objects.read_from {
            ReadFrom::Cache => format!("{path}?resourceVersion=0"),
            ReadFrom::Etcd => path.to_owned(),
        };
        self.client.get(&path).map_err(plugin_error)
    }
}

impl ClusterLookup for ObjectReader<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, cni::Error> {
        if let Some(known) = self.objects.namespaces.get(name) {
            return known.clone();
        }
        let found: Result<Namespace, _> = self.get(&namespace_path(name));
        let annotations = found.map(|namespace| namespace.metadata.annotations);
        let namespaces = &mut self.objects.namespaces;
        namespaces.insert(name.to_owned(), annotations.clone());
        annotations
    }

    fn api_service(&mut self) -> Result<Service, cni::Error> {
        if let Some(known) = &self.objects.api_service {
            return known.clone();
        }
        let found = self.get(API_SERVICE);
        self.objects.api_service = Some(found.clone());
        found
    }
}

/// Converts an API error to the error type of the code shared with the plugin.
fn plugin_error(error: kube::Error) -> cni::Error {
    cni::Error::new(Failure::ApiError, error.to_string())
}
