//! Compares the rules in a pod's network namespace with those that the plugin would
//! make for it, and puts them right.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::host::{self, Host};
use super::sandbox::{self, Sandboxes};
use crate::cni;
use crate::cni::args::PodRef;
use crate::config::Config;
use crate::firewall::{self, Survey};
use crate::kube::Client;
use crate::kube::types::Pod;
use crate::netns;
use crate::plugin;
use crate::plugin::pod::{Reader, is_meshed};
use crate::rules::{Family, Redirect};

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
    families: &'static [Family],
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
    reader: Reader,
}

impl Inspector {
    /// Reads the plugin's configuration and the runtime's memory.
    pub fn new(host: &Host) -> Result<Self, Error> {
        Ok(Inspector {
            config: host.config()?,
            sandboxes: Sandboxes::read(host),
            reader: Reader::default(),
        })
    }

    /// Looks; changes nothing.
    pub fn look(&mut self, client: &Client, pod: Pod) -> Result<Finding, Error> {
        let containers = pod.spec.containers.as_deref().unwrap_or_default();
        if self.config.simulate || !is_meshed(containers, &pod.spec.init_containers) {
            return Ok(Finding::NotOurs);
        }
        let namespace = self.sandboxes.find(&pod)?;
        let name = PodRef {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
        };
        let Some(facts) = self.reader.facts(client, &name, pod)? else {
            return Ok(Finding::NotOurs);
        };
        let target = Target {
            namespace,
            redirect: self.config.redirect(&facts.annotations, &facts.api_ports)?,
            families: plugin::families(&self.config),
        };
        Ok(match target.survey()? {
            Survey::Right => Finding::Right,
            Survey::Wrong(missing) => Finding::Wrong(target, missing),
            Survey::Unreadable => Finding::Unreadable,
        })
    }
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
            families,
        } = self.clone();
        let restore = move || firewall::restore(&redirect, families);
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
            families,
        } = self.clone();
        let survey = move || firewall::survey(&redirect, families);
        Ok(netns::run(&namespace, DEADLINE, survey)??)
    }
}
