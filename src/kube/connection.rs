//! The API client with a credential that may be replaced at any time.

use std::path::PathBuf;

use super::kubeconfig;
use super::kubeconfig::{Access, Overrides};
use super::{Client, Deadlines, Impersonate};

/// Where address and credential come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// What every pod is given.
    InCluster {
        host: String,
        port: String,
        dir: PathBuf,
    },
    /// Ours, for the context of the plugin.
    Kubeconfig(PathBuf),
    /// Somebody's.
    SelectedKubeconfig(PathBuf, Overrides),
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot learn how to reach the API server: {0}")]
    Config(#[from] kubeconfig::Error),
    #[error("cannot reach the API server: {0}")]
    Client(#[from] super::Error),
}

/// A client that follows its source.
pub struct Connection {
    source: Source,
    user_agent: &'static str,
    deadlines: Deadlines,
    impersonate: Impersonate,
    current: Option<(Access, Client)>,
}

impl Connection {
    /// Prepares; nothing is read yet.
    pub fn new(source: Source, user_agent: &'static str, deadlines: Deadlines) -> Self {
        Connection {
            source,
            user_agent,
            deadlines,
            impersonate: Impersonate::default(),
            current: None,
        }
    }

    /// The same, in the name of others.
    pub fn impersonating(self, impersonate: Impersonate) -> Self {
        Connection {
            impersonate,
            ..self
        }
    }

    /// The client to use for the next request. The files are read each time, which
    /// costs less than any request: a rotated token is found before the old one is
    /// refused, and a refused one cannot be used twice if there is another.
    pub fn client(&mut self) -> Result<Client, Error> {
        let access = read(&self.source)?;
        if let Some((known, client)) = &self.current
            && *known == access
        {
            return Ok(client.clone());
        }
        let mut client = Client::new(&access, self.user_agent, self.deadlines)?;
        client.impersonate = self.impersonate.clone();
        self.current = Some((access, client.clone()));
        Ok(client)
    }

    /// The token of the last client.
    pub fn token(&self) -> Option<&str> {
        self.current.as_ref()?.0.token.as_deref()
    }
}

fn read(source: &Source) -> Result<Access, kubeconfig::Error> {
    match source {
        Source::InCluster { host, port, dir } => kubeconfig::in_cluster(host, port, dir),
        Source::Kubeconfig(path) => kubeconfig::read(path),
        Source::SelectedKubeconfig(path, overrides) => kubeconfig::read_with(path, overrides),
    }
}
