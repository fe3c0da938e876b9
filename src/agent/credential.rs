//! Renders the plugin's kubeconfig from the agent's environment, ServiceAccount and CA file,
//! and reads and writes it on the host.

use std::path::PathBuf;

use super::api::server_address::ServerAddress;
use super::settings::Settings;
use crate::files;
use crate::files::FileAccess;
use crate::kube::kubeconfig::{self, ApiAccess};

/// File mode of the kubeconfig: it contains a token, so only root may read it.
const MODE: u32 = 0o600;

/// Why the kubeconfig cannot be rendered, read or written. No variant contains a credential.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} is not set")]
    Unset(&'static str),
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    #[error("{} is not text", .0.display())]
    NotText(PathBuf),
    #[error("KUBE_CA_FILE={}: {error}; set it to a file with CA certificates, or unset it", path.display())]
    Ca { path: PathBuf, error: Box<Error> },
    #[error("waiting for the address of the API server {0}")]
    Unresolved(String),
    #[error(
        "cannot resolve the API server's name {name}: {why}; check KUBERNETES_SERVICE_HOST and the DNS of the agent's pod, or set dnsPolicy=Default to use the node's DNS"
    )]
    Resolution { name: String, why: String },
    #[error(transparent)]
    File(#[from] files::Error),
}

/// Reads the API server's address, the CA and the agent's own token. `resolved` is the address if
/// the settings have a host name, as the plugin resolves none.
///
/// # Errors
/// If one of them is missing, empty or not text. The agent's token is needed even if the
/// plugin has a ServiceAccount of its own: with it the agent requests the plugin's token.
pub fn own_access(settings: &Settings, resolved: ServerAddress) -> Result<ApiAccess, Error> {
    let host = settings.api_host.as_deref().ok_or(Error::Unset("KUBERNETES_SERVICE_HOST"))?;
    let port = settings.api_port.as_deref().ok_or(Error::Unset("KUBERNETES_SERVICE_PORT"))?;
    let tls_server_name = settings.api_name().map(str::to_owned);
    let server = match (tls_server_name.clone(), resolved) {
        (None, _) => kubeconfig::server(host, port),
        (Some(_), ServerAddress { address: Some(address), .. }) => {
            kubeconfig::server(&address.to_string(), port)
        }
        (Some(name), ServerAddress { error: None, .. }) => return Err(Error::Unresolved(name)),
        (Some(name), ServerAddress { error: Some(why), .. }) => {
            return Err(Error::Resolution { name, why });
        }
    };
    let token = Some(content(settings.service_account_dir.join("token"))?);
    let ca = match settings.ca_file.clone() {
        None => content(settings.service_account_dir.join("ca.crt"))?,
        Some(path) => {
            content(path.clone()).map_err(|error| Error::Ca { path, error: Box::new(error) })?
        }
    };
    Ok(ApiAccess { server, tls_server_name, ca: ca.into_bytes(), token })
}

/// Returns whether the kubeconfig on the host names the API server by a host name, as upstream's
/// agent writes it. The plugin in the image resolves no names.
pub fn needs_resolver(settings: &Settings) -> bool {
    kubeconfig::read(&settings.node.kubeconfig()).is_ok_and(|access| access.address().is_none())
}

/// Returns the token in the kubeconfig on the host, if there is one. It may have expired, and
/// may belong to any ServiceAccount.
pub fn token_on_host(settings: &Settings) -> Option<String> {
    let token = kubeconfig::read(&settings.node.kubeconfig()).ok()?.token?;
    Some(token).filter(|token| !token.is_empty())
}

/// Reads a text file, without white space around the text.
fn content(path: PathBuf) -> Result<String, Error> {
    let (bytes, _) = files::read(&path)?;
    match String::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() => Err(Error::Empty(path)),
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => Err(Error::NotText(path)),
    }
}

/// Returns whether the kubeconfig on the host is `desired` byte for byte, with mode
/// 0600 and owned by the agent's user, which is root.
pub fn is_current(settings: &Settings, desired: &str) -> Result<bool, Error> {
    let path = settings.node.kubeconfig();
    let Some(metadata) = files::metadata(&path)? else {
        return Ok(false);
    };
    // A file that is too large to be read has another length.
    let has_form = metadata.is_file()
        && metadata.len() == desired.len() as u64
        && FileAccess::of(&metadata) == FileAccess::own(MODE);
    Ok(has_form && files::read(&path)?.0 == desired.as_bytes())
}

pub fn write(settings: &Settings, desired: &str) -> Result<(), Error> {
    let path = settings.node.kubeconfig();
    Ok(files::write(&path, desired.as_bytes(), FileAccess::own(MODE))?)
}
