//! An API client whose credential may be replaced on disk at any time.

use std::path::PathBuf;

use super::kubeconfig::{self, ApiAccess};
use super::{Client, Deadlines, SystemResolver};

/// Where the address and the credential are read from.
#[derive(Clone, Debug)]
pub enum AccessSource {
    /// The address and the ServiceAccount credential that Kubernetes gives each pod.
    InCluster {
        host: String,
        port: String,
        dir: PathBuf,
    },
    Kubeconfig(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the API server's address or credential: {0}")]
    Config(#[from] kubeconfig::Error),
    #[error("cannot set up the API client: {0}")]
    Client(#[from] super::Error),
}

/// A client that is replaced when its credential or address changes.
pub struct Connection {
    source: AccessSource,
    user_agent: &'static str,
    deadlines: Deadlines,
    /// The last client, and the access for which it was made.
    current: Option<(ApiAccess, Client)>,
}

impl Connection {
    pub fn new(source: AccessSource, user_agent: &'static str, deadlines: Deadlines) -> Self {
        Connection { source, user_agent, deadlines, current: None }
    }

    /// Returns the client for the next request. Reads address and credential from the source each
    /// time, so that a rotated token is used before the API server rejects the old one. Reading the
    /// files costs less than a request.
    pub fn client(&mut self) -> Result<Client, Error> {
        let access = match &self.source {
            AccessSource::InCluster { host, port, dir } => {
                kubeconfig::read_in_cluster(host, port, dir)?
            }
            AccessSource::Kubeconfig(path) => kubeconfig::read(path)?,
        };
        if let Some((current_access, client)) = &self.current
            && *current_access == access
        {
            return Ok(client.clone());
        }
        let client = Client::new::<SystemResolver>(&access, self.user_agent, self.deadlines)?;
        self.current = Some((access, client.clone()));
        Ok(client)
    }

    /// Closes the idle connections, which hold memory until the next request.
    pub fn close(&mut self) {
        self.current = None;
    }

    /// Returns the token of the last client; `None` after [`Connection::close`].
    pub fn token(&self) -> Option<&str> {
        let (access, _) = self.current.as_ref()?;
        access.token.as_deref()
    }
}
