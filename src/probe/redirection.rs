//! Shows that connections of a meshed pod are redirected to the proxy's ports.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};

use super::{ATTEMPT_TIMEOUT, PAUSE, retry};
use crate::admin;

/// IPv4 address reserved for documentation (RFC 5737). No host has this address, so a connection to
/// it succeeds only if it is redirected.
const UNUSED_IPV4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// IPv6 address reserved for documentation (RFC 3849), which no host has either.
const UNUSED_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
/// How long to retry, because the other container may still be starting.
const RETRY_BUDGET: Duration = Duration::from_secs(20);
/// Largest number of bytes that are read from a connection.
const LONGEST_LINE: u64 = 1 << 10;

/// Returns the line that [`serve`] sends on `port`.
fn response(token: &str, port: u16) -> String {
    format!("{token} {port}\n")
}

/// Returns one address for each IP family that is to be redirected. Fails if there is none.
pub fn unused_addresses(pod_ips: &[IpAddr], no_ipv6: bool) -> anyhow::Result<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    if pod_ips.iter().any(IpAddr::is_ipv4) {
        addresses.push(UNUSED_IPV4);
    }
    if pod_ips.iter().any(IpAddr::is_ipv6) && !no_ipv6 {
        addresses.push(UNUSED_IPV6);
    }
    ensure!(
        !addresses.is_empty(),
        "the pod has no address of a redirected IP family ({pod_ips:?}): \
         in an IPv6-only cluster, set disableIPv6=false in the chart"
    );
    Ok(addresses)
}

/// Fails unless connections to `port` of each address are redirected to `proxy_port`.
pub fn verify(addresses: &[IpAddr], port: u16, token: &str, proxy_port: u16) -> anyhow::Result<()> {
    for ip in addresses {
        let address = SocketAddr::new(*ip, port);
        expect_response(address, &response(token, proxy_port), RETRY_BUDGET)?;
        tracing::info!("a connection to {address} was redirected to {proxy_port}");
    }
    Ok(())
}

/// Serves the proxy's ports in its place. Does not return.
pub fn serve(token: &str, ports: &[u16]) -> anyhow::Result<()> {
    let mut listeners = Vec::new();
    for port in ports {
        // Listens on all addresses of both IP families.
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port));
        let listener =
            admin::listen(address).with_context(|| format!("cannot listen on port {port}"))?;
        listeners.push((*port, listener));
    }
    tracing::info!("listening on {ports:?}");
    let has_connection = AtomicBool::new(false);
    thread::scope(|scope| {
        for (port, listener) in &listeners {
            let line = response(token, *port);
            let has_connection = &has_connection;
            scope.spawn(move || reply_to_all(listener, &line, has_connection));
        }
        thread::sleep(RETRY_BUDGET);
        if !has_connection.load(Ordering::Relaxed) {
            tracing::error!(
                "no connection was redirected to {ports:?} within {} s: the container runtime did \
                 not call the plugin for this pod, or the plugin skipped the pod; see the log of \
                 the agent on its node, and `linkerd cni check`",
                RETRY_BUDGET.as_secs()
            );
        }
    });
    Ok(())
}

/// Replies to each connection with `line`. Does not return.
fn reply_to_all(listener: &TcpListener, line: &str, has_connection: &AtomicBool) {
    for stream in listener.incoming() {
        has_connection.store(true, Ordering::Relaxed);
        if let Err(error) = stream.and_then(|stream| reply(stream, line)) {
            tracing::debug!("{error}");
            thread::sleep(PAUSE);
        }
    }
}

/// Sends `line`, then reads until the client closes: closing with unread data would reset the
/// connection, and the client might lose the line.
fn reply(mut stream: TcpStream, line: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
    stream.write_all(line.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream.take(LONGEST_LINE), &mut io::sink())?;
    Ok(())
}

/// Retries until `address` responds with `response`. Fails after `budget`.
fn expect_response(address: SocketAddr, response: &str, budget: Duration) -> anyhow::Result<()> {
    let result = retry(budget, || {
        let line = read_line(address)?;
        ensure!(line == response, "unexpected response");
        Ok(())
    });
    result.map_err(|problem| {
        anyhow!(
            "a connection to {address} was not redirected to the proxy: {problem}; \
             see the Events of this pod and the log of the agent on its node"
        )
    })
}

/// Connects to `address`, and reads one line.
fn read_line(address: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, ATTEMPT_TIMEOUT)?;
    stream.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST_LINE)).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Starts a server that responds as `serve` does on `port`. Returns its address, with another
    /// port.
    fn fake_proxy(token: &'static str, port: u16) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            reply_to_all(&listener, &response(token, port), &AtomicBool::default());
        });
        address
    }

    #[test]
    fn only_the_response_with_token_and_proxy_port_is_accepted() {
        let expected_response = response("token", 4140);
        let cases = [
            (fake_proxy("token", 4140), None),
            (fake_proxy("token", 4143), Some("unexpected response")),
            (fake_proxy("other", 4140), Some("unexpected response")),
            // No program listens on port 1.
            ("127.0.0.1:1".parse().unwrap(), Some("refused")),
        ];
        for (address, problem) in cases {
            let result = expect_response(address, &expected_response, Duration::ZERO);
            let message = result.err().map(|error| error.to_string());
            match (&message, problem) {
                (None, None) => {}
                (Some(message), Some(problem)) => assert!(message.contains(problem), "{message}"),
                _ => panic!("{problem:?}: {message:?}"),
            }
        }
    }

    #[test]
    fn probe_retries_until_the_server_has_started() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            // The first connection gets no response, as if the server had not started yet.
            drop(listener.accept());
            reply_to_all(&listener, &response("token", 4140), &AtomicBool::default());
        });
        expect_response(address, &response("token", 4140), Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn probe_has_an_address_for_each_redirected_family() {
        let four: IpAddr = "10.0.0.1".parse().unwrap();
        let six: IpAddr = "fd00::1".parse().unwrap();
        for (ips, no_ipv6, expected) in [
            (vec![four], true, Some(vec![UNUSED_IPV4])),
            (vec![four], false, Some(vec![UNUSED_IPV4])),
            (vec![six, four], false, Some(vec![UNUSED_IPV4, UNUSED_IPV6])),
            (vec![six, four], true, Some(vec![UNUSED_IPV4])),
            (vec![six], false, Some(vec![UNUSED_IPV6])),
            (vec![six], true, None),
        ] {
            assert_eq!(unused_addresses(&ips, no_ipv6).ok(), expected, "{ips:?} {no_ipv6}");
        }
    }
}
