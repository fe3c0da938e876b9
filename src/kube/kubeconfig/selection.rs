//! Reads the API access of the context that the plugin uses.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{ApiAccess, CONTEXT, Error, document};
use crate::files;

/// Reads the kubeconfig at `path` and returns the access of its context [`CONTEXT`].
pub fn read(path: &Path) -> Result<ApiAccess, Error> {
    parse(path, &files::read(path)?.0)
}

/// Returns the access of the context [`CONTEXT`] in the kubeconfig `bytes`, which was read from
/// `path`. Relative paths in the kubeconfig start at the directory of `path`.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<ApiAccess, Error> {
    let file = document::decode(path, bytes)?;
    let missing = |what: String| Error::Missing { path: path.to_owned(), what };
    let context = file
        .contexts
        .into_iter()
        .find(|context| context.name == CONTEXT)
        .ok_or_else(|| missing(format!("context \"{CONTEXT}\"")))?
        .context;
    let cluster = file
        .clusters
        .into_iter()
        .find(|cluster| cluster.name == context.cluster)
        .ok_or_else(|| missing(format!("cluster \"{}\"", context.cluster)))?
        .cluster;
    let user = file
        .users
        .into_iter()
        .find(|user| user.name == context.user)
        .ok_or_else(|| missing(format!("user \"{}\"", context.user)))?
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
