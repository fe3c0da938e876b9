//! Compares the rules in a pod's netns with the rules that the plugin would install there,
//! and installs missing rules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::host::{self, Host};
use super::sandbox::{self, Sandboxes};
use crate::cni;
use crate::cni::args::PodRef;
use crate::cni::error::code;
use crate::config::families::families;
use crate::config::pod::{API_SERVICE, ClusterLookup, Mesh, facts, is_meshed, namespace_path};
use crate::config::{Annotations, Config, Ipv6};
use crate::firewall::{self, Survey};
use crate::kube::types::{Namespace, Pod, Service};
use crate::kube::{self, Client};
use crate::netns;
use crate::rules::Redirect;

/// Time allowed for reading, or installing, the rules of one netns.
const NETNS_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("what the plugin is told: {0}")]
    Host(#[from] host::Error),
    #[error("cannot tell which rules the pod should have: {0}")]
    Rules(#[from] cni::Error),
    #[error("cannot find the pod's network namespace: {0}")]
    Sandbox(#[from] sandbox::Error),
    #[error(transparent)]
    Enter(#[from] netns::Error),
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    #[error(
        "the rules are not there after they were put in place: {}",
        firewall::describe_missing(missing)
    )]
    StillMissing { missing: Vec<String> },
}

/// The rules that a pod should have, and the netns they belong to.
#[derive(Clone, Debug)]
pub struct PodRules {
    netns: PathBuf,
    redirect: Redirect,
    ipv6: Ipv6,
}

/// Result of inspecting a pod.
#[derive(Debug)]
pub enum Finding {
    /// The plugin installs no rules for this pod.
    NotApplicable,
    /// All rules are present.
    Complete,
    /// These rules, as lines of `iptables-save`, are missing or changed.
    Missing(PodRules, Vec<String>),
    /// The netns has rules of `iptables-legacy`, which cannot be read without the host's
    /// programs; see [`firewall::survey`].
    Unreadable,
}

/// Inspects pods. It keeps the plugin configuration, the runtime's cache and the API
/// objects that it has read: create a new inspector for each audit or repair.
pub struct Inspector {
    config: Config,
    sandboxes: Sandboxes,
    objects: ReadObjects,
}

/// Where the API server reads objects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// Its cache, which may be stale. For audits, which read many objects; the worker
    /// inspects each pod again with [`ReadFrom::Etcd`] before a repair.
    Cache,
    /// etcd, which is always up to date.
    Etcd,
}

impl Inspector {
    /// Reads the plugin configuration and the runtime's cache of CNI results.
    pub fn new(host: &Host, read_from: ReadFrom) -> Result<Self, Error> {
        Ok(Inspector {
            config: host.config()?,
            sandboxes: Sandboxes::read(host),
            objects: ReadObjects { read_from, namespaces: BTreeMap::new(), api_service: None },
        })
    }

    /// Compares the pod's rules with the rules it should have. Changes nothing.
    pub fn inspect(&mut self, client: &Client, pod: Pod) -> Result<Finding, Error> {
        if self.config.simulate || !is_meshed(&pod) {
            return Ok(Finding::NotApplicable);
        }
        let netns = self.sandboxes.find(&pod)?;
        let name =
            PodRef { namespace: pod.metadata.namespace.clone(), name: pod.metadata.name.clone() };
        let mut surroundings = ObjectReader { client, objects: &mut self.objects };
        let Mesh::Meshed(facts) = facts(pod, &name, &mut surroundings)? else {
            return Ok(Finding::NotApplicable);
        };
        let rules =
            PodRules { netns, redirect: self.config.redirect(&facts)?, ipv6: self.config.ipv6 };
        Ok(match rules.survey()? {
            Survey::Complete => Finding::Complete,
            Survey::Missing(missing) => Finding::Missing(rules, missing),
            Survey::Unreadable => Finding::Unreadable,
        })
    }
}

/// API objects read so far. Errors are kept, too: 100 pods of one namespace must not
/// cause 100 requests to an API server that rejects them.
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
    cni::Error::new(code::API_RESPONSE, error.to_string())
}

impl PodRules {
    /// Path of the pod's netns.
    pub fn netns(&self) -> &Path {
        &self.netns
    }

    /// Installs the rules and reads them back. Always with the native backend, whatever
    /// `iptablesMode` says, because this container lacks the host's iptables.
    pub fn restore(&self) -> Result<(), Error> {
        let PodRules { netns, redirect, ipv6 } = self.clone();
        let restore = move || firewall::restore(&redirect, families(ipv6, false));
        netns::run(&netns, NETNS_TIMEOUT, restore)??;
        match self.survey()? {
            Survey::Complete => Ok(()),
            Survey::Missing(missing) => Err(Error::StillMissing { missing }),
            Survey::Unreadable => Err(Error::StillMissing { missing: Vec::new() }),
        }
    }

    /// Reads the rules in the netns.
    fn survey(&self) -> Result<Survey, Error> {
        let PodRules { netns, redirect, ipv6 } = self.clone();
        let survey = move || firewall::survey(&redirect, families(ipv6, false));
        Ok(netns::run(&netns, NETNS_TIMEOUT, survey)??)
    }
}
