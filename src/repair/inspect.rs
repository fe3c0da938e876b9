//! Compares the rules in a pod's network namespace with those that the plugin would
//! make for it, and puts them right.

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
use crate::config::pod::{API_SERVICE, ClusterLookup, facts, is_meshed, namespace_path};
use crate::config::{Annotations, Config, Ipv6};
use crate::firewall::{self, Survey};
use crate::kube::types::{Namespace, Pod, Service};
use crate::kube::{self, Client};
use crate::netns;
use crate::rules::Redirect;

/// How long looking into, or programming, one namespace may take.
const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("what the plugin is told: {0}")]
    Host(#[from] host::Error),
    #[error("cannot tell which rules the pod should have: {0}")]
    Wanted(#[from] cni::Error),
    #[error("cannot find the pod's network namespace: {0}")]
    Sandbox(#[from] sandbox::Error),
    #[error(transparent)]
    Enter(#[from] netns::Error),
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    #[error("the rules are not there after they were put in place: {}", missing.join("; "))]
    NotThere { missing: Vec<String> },
}

/// A pod's namespace, and what should be in it.
#[derive(Clone, Debug)]
pub struct Target {
    namespace: PathBuf,
    redirect: Redirect,
    ipv6: Ipv6,
}

/// What was found about a pod.
#[derive(Debug)]
pub enum Finding {
    /// Not a pod that the plugin would make rules for.
    NotOurs,
    Right,
    /// These are missing or changed.
    Wrong(Target, Vec<String>),
    /// Made by programs that are not here; see [`firewall::survey`].
    Unreadable,
}

/// Looks at pods one after the other. Knows the node as it was when this was made:
/// make another one for another round.
pub struct Inspector {
    config: Config,
    sandboxes: Sandboxes,
    answers: Answers,
}

/// Where the API server takes objects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Its cache. For audits, which read many objects; the worker checks each finding
    /// again with [`Reads::Newest`] before it acts.
    Cached,
    /// etcd.
    Newest,
}

impl Inspector {
    /// Reads the plugin's configuration and the runtime's memory.
    pub fn new(host: &Host, reads: Reads) -> Result<Self, Error> {
        Ok(Inspector {
            config: host.config()?,
            sandboxes: Sandboxes::read(host),
            answers: Answers {
                reads,
                namespaces: BTreeMap::new(),
                api_service: None,
            },
        })
    }

    /// Looks; changes nothing.
    pub fn look(&mut self, client: &Client, pod: Pod) -> Result<Finding, Error> {
        if self.config.simulate || !is_meshed(&pod) {
            return Ok(Finding::NotOurs);
        }
        let namespace = self.sandboxes.find(&pod)?;
        let name = PodRef {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
        };
        let mut surroundings = Asked {
            client,
            answers: &mut self.answers,
        };
        let Some(facts) = facts(pod, &name, &mut surroundings)? else {
            return Ok(Finding::NotOurs);
        };
        let target = Target {
            namespace,
            redirect: self.config.redirect(&facts)?,
            ipv6: self.config.ipv6,
        };
        Ok(match target.survey()? {
            Survey::Right => Finding::Right,
            Survey::Wrong(missing) => Finding::Wrong(target, missing),
            Survey::Unreadable => Finding::Unreadable,
        })
    }
}

/// Objects read in this round. Errors are kept too: 100 pods of one namespace must not
/// cause 100 requests to an API server that refuses them.
struct Answers {
    reads: Reads,
    /// Annotations of each namespace.
    namespaces: BTreeMap<String, Result<Annotations, cni::Error>>,
    api_service: Option<Result<Service, cni::Error>>,
}

/// Asks the API server for each object once a round.
struct Asked<'a> {
    client: &'a Client,
    answers: &'a mut Answers,
}

impl Asked<'_> {
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, cni::Error> {
        let path = match self.answers.reads {
            Reads::Cached => format!("{path}?resourceVersion=0"),
            Reads::Newest => path.to_owned(),
        };
        self.client.get(&path).map_err(refused)
    }
}

impl ClusterLookup for Asked<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, cni::Error> {
        if let Some(known) = self.answers.namespaces.get(name) {
            return known.clone();
        }
        let found: Result<Namespace, _> = self.get(&namespace_path(name));
        let annotations = found.map(|namespace| namespace.metadata.annotations);
        let namespaces = &mut self.answers.namespaces;
        namespaces.insert(name.to_owned(), annotations.clone());
        annotations
    }

    fn api_service(&mut self) -> Result<Service, cni::Error> {
        if let Some(known) = &self.answers.api_service {
            return known.clone();
        }
        let found = self.get(API_SERVICE);
        self.answers.api_service = Some(found.clone());
        found
    }
}

fn refused(error: kube::Error) -> cni::Error {
    cni::Error::new(code::API_ANSWER, error.to_string())
}

impl Target {
    /// Where the rules belong.
    pub fn namespace(&self) -> &Path {
        &self.namespace
    }

    /// Puts the rules in place and reads them back. Always as nf_tables of the kernel,
    /// whatever the plugin is told to use: the host's iptables are not here.
    pub fn put_right(&self) -> Result<(), Error> {
        let Target {
            namespace,
            redirect,
            ipv6,
        } = self.clone();
        let restore = move || firewall::restore(&redirect, families(ipv6, false));
        netns::run(&namespace, DEADLINE, restore)??;
        match self.survey()? {
            Survey::Right => Ok(()),
            Survey::Wrong(missing) => Err(Error::NotThere { missing }),
            Survey::Unreadable => Err(Error::NotThere {
                missing: Vec::new(),
            }),
        }
    }

    fn survey(&self) -> Result<Survey, Error> {
        let Target {
            namespace,
            redirect,
            ipv6,
        } = self.clone();
        let survey = move || firewall::survey(&redirect, families(ipv6, false));
        Ok(netns::run(&namespace, DEADLINE, survey)??)
    }
}
