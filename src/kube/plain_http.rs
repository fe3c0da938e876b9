//! Requests to programs of the same pod: plain HTTP without credential, and not counted as requests
//! to the API server.

use std::io::Read as _;
use std::time::Duration;

use ureq::Agent as HttpAgent;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::TcpConnector;

use super::{ERROR_LIMIT, Error};

/// GETs `url`. Returns the status code and the start of the body.
pub fn get(url: &str, timeout: Duration) -> Result<(u16, String), Error> {
    let config = HttpAgent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .timeout_global(Some(timeout))
        .build();
    let agent = HttpAgent::with_parts(config, TcpConnector::default(), DefaultResolver::default());
    let mut response = agent
        .get(url)
        .call()
        .map_err(|source| Error::Transport { request: format!("GET {url}"), source })?;
    let mut body = Vec::new();
    // The status code is what matters, so a truncated body is good enough.
    let _ = response.body_mut().as_reader().take(ERROR_LIMIT).read_to_end(&mut body);
    Ok((response.status().as_u16(), String::from_utf8_lossy(&body).into_owned()))
}
