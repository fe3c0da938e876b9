//! Selects context, cluster and user in a kubeconfig.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{ApiAccess, CONTEXT, Error, document};
use crate::files;

/// Parts of a kubeconfig to use, as selected by kubectl's options of the same names.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Default: the current context of the kubeconfig, or [`CONTEXT`] if it has none.
    pub context: Option<String>,
    /// Default: the cluster of the context.
    pub cluster: Option<String>,
    /// Default: the user of the context.
    pub user: Option<String>,
}

/// Reads the kubeconfig at `path` and returns the access of its context [`CONTEXT`].
pub fn read(path: &Path) -> Result<ApiAccess, Error> {
    let overrides = Overrides { context: Some(CONTEXT.to_owned()), ..Overrides::default() };
    read_with(path, &overrides)
}

/// Reads the kubeconfig at `path` and returns the access that `overrides` select.
pub fn read_with(path: &Path, overrides: &Overrides) -> Result<ApiAccess, Error> {
    parse(path, &files::read(path)?.0, overrides)
}

/// Returns the access that `overrides` select in the kubeconfig `bytes`, which was read from
/// `path`. Relative paths in the kubeconfig start at the directory of `path`.
pub(super) fn parse(path: &Path, bytes: &[u8], overrides: &Overrides) -> Result<ApiAccess, Error> {
    let file = document::decode(path, bytes)?;
    let missing = |what: String| Error::Missing { path: path.to_owned(), what };
    let current = file.current_context.filter(|name| !name.is_empty());
    let name = overrides.context.clone().or(current);
    let name = name.unwrap_or_else(|| CONTEXT.to_owned());
    let context = file
        .contexts
        .into_iter()
        .find(|context| context.name == name)
        .ok_or_else(|| missing(format!("context \"{name}\"")))?
        .context;
    let cluster_name = overrides.cluster.clone().unwrap_or(context.cluster);
    let user_name = overrides.user.clone().unwrap_or(context.user);
    let cluster = file
        .clusters
        .into_iter()
        .find(|cluster| cluster.name == cluster_name)
        .ok_or_else(|| missing(format!("cluster \"{cluster_name}\"")))?
        .cluster;
    let user = file
        .users
        .into_iter()
        .find(|user| user.name == user_name)
        .ok_or_else(|| missing(format!("user \"{user_name}\"")))?
        .user;
    if !cluster.server.starts_with("https://") && !cluster.server.starts_with("http://") {
        return Err(Error::Field {
            path: path.to_owned(),
            field: "server",
            message: format!("\"{}\" is not an https:// URL", cluster.server),
        });
    }
    let ca = match (cluster.ca_data, cluster.ca_file) {
        (Some(data), _) => BASE64.decode(data.trim()).map_err(|error| Error::Field {
            path: path.to_owned(),
            field: "certificate-authority-data",
            message: format!("not base64: {error}"),
        })?,
        (None, Some(file)) => files::read(&resolve_path(path, &file))?.0,
        (None, None) => Vec::new(),
    };
    let token = match (user.token, user.token_file) {
        (Some(token), _) => Some(token),
        (None, Some(file)) => {
            let (token, _) = files::read(&resolve_path(path, &file))?;
            Some(String::from_utf8_lossy(&token).into_owned())
        }
        (None, None) => None,
    };
    let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    if let Some(token) = &token
        && !token.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    {
        return Err(Error::Field {
            path: path.to_owned(),
            field: "token",
            message: "contains characters that are invalid in an HTTP header".to_owned(),
        });
    }
    Ok(ApiAccess {
        server: cluster.server,
        tls_server_name: cluster.tls_server_name.filter(|name| !name.is_empty()),
        ca,
        insecure: cluster.insecure,
        token,
    })
}

/// Resolves a path in a kubeconfig relative to the kubeconfig, as kubectl does.
fn resolve_path(kubeconfig: &Path, file: &Path) -> PathBuf {
    kubeconfig.parent().map_or_else(|| file.to_owned(), |dir| dir.join(file))
}
