//! Takes the address of an API server from its URL, without name resolution.
//!
//! The plugin must not resolve names. It runs on the host as a static program, in which libc's
//! resolver would load the modules that the host's `nsswitch.conf` names. These modules belong to
//! another libc, so loading them would kill the plugin by a signal:
//! `docs/decisions/0008-no-resolver-in-the-plugin.md`.

use std::net::{IpAddr, SocketAddr};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::kubeconfig::ApiAccess;

/// A resolver that accepts only IP addresses. If all clients of a program use this resolver, the
/// linker leaves out the code that resolves names.
#[derive(Debug, Default)]
pub struct LiteralAddress;

impl Resolver for LiteralAddress {
    fn resolve(
        &self,
        uri: &Uri,
        _config: &Config,
        _timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let Some(address) = parse_address(uri) else {
            let host = uri.host().unwrap_or_default();
            return Err(Error::BadUri(format!(
                "the host {host} is not an IP address, and is not resolved"
            )));
        };
        let default_port = if uri.scheme_str() == Some("http") { 80 } else { 443 };
        let port = uri.port_u16().unwrap_or(default_port);
        let mut addresses = self.empty();
        addresses.push(SocketAddr::new(address, port));
        Ok(addresses)
    }
}

impl ApiAccess {
    /// Returns the IP address in the server's URL. `None`: the URL has a host name.
    pub fn address(&self) -> Option<IpAddr> {
        let uri: Uri = self.server.parse().ok()?;
        parse_address(&uri)
    }
}

/// Returns the IP address in a URL. `None`: the URL has a host name.
fn parse_address(uri: &Uri) -> Option<IpAddr> {
    host(uri).parse().ok()
}

/// Returns the host of a URL, without the brackets around an IPv6 address.
pub fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}
