//! Verifies an installation; `helm test` runs it from the agent's image.
//!
//! In a meshed pod, one container serves the proxy's ports in place of the proxy. Another connects to
//! an address that no host has. Only the redirect rules can connect the two. An unmeshed pod compares
//! the nodes of the DaemonSet with those whose agent is ready.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use serde_json::Value;

use crate::admin;
use crate::agent::api::{USER_AGENT, namespace, source};
use crate::agent::settings::Settings;
use crate::extension::checks::rollout;
use crate::kube::Deadlines;
use crate::kube::connection::Connection;
use crate::kube::scheduling::daemonset_path;

/// Addresses reserved for documentation, one for each family. No host has them, so a connection to
/// them succeeds only if it is redirected.
const UNUSED_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// Timeout of one attempt: for connecting, and for each read.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which to retry, as the other container may still be starting.
const RETRY_BUDGET: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(500);
/// Time for the agents of all nodes to become ready, as after an install without `--wait`.
const ROLLOUT_BUDGET: Duration = Duration::from_secs(60);

/// The sides of the probe. `serve` and `outbound` get the same token, which tells the response of `serve` from
/// that of any other server, such as another proxy.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Probe {
    /// Serve the proxy's ports in its place: respond to each connection with the token and
    /// the port, until killed
    Serve {
        /// Token that `serve` sends and `outbound` expects
        #[arg(long, env = "LINKERD_CNI_PROBE_TOKEN")]
        token: String,
        /// Ports to serve
        #[arg(required = true)]
        ports: Vec<u16>,
    },
    /// Connect to an address that no host has, for each IP family of the pod, and fail unless
    /// `serve` responds
    Outbound {
        /// Token that `serve` sends and `outbound` expects
        #[arg(long, env = "LINKERD_CNI_PROBE_TOKEN")]
        token: String,
        /// IP addresses of the pod, comma-separated; they determine its IP families
        #[arg(long, env = "LINKERD_CNI_PROBE_POD_IPS", value_delimiter = ',')]
        pod_ips: Vec<IpAddr>,
        /// Do not expect redirection of IPv6 (disableIPv6=true in the chart)
        #[arg(long)]
        no_ipv6: bool,
        /// The port to connect to
        port: u16,
        /// The proxy's port, on which `serve` has to receive the connection
        proxy_port: u16,
    },
    /// Fail unless each node of the DaemonSet has its current agent, and each agent is ready
    Nodes,
}

impl Probe {
    /// Runs this side of the probe. `serve` does not return.
    pub fn run(&self, settings: &Settings) -> anyhow::Result<()> {
        match self {
            Probe::Serve { token, ports } => serve(token, ports),
            Probe::Outbound { token, pod_ips, no_ipv6, port, proxy_port } => {
                for ip in targets(pod_ips, *no_ipv6)? {
                    let address = SocketAddr::new(ip, *port);
                    expect(address, &response(token, *proxy_port), RETRY_BUDGET)?;
                    tracing::info!("a connection to {address} was redirected to {proxy_port}");
                }
                Ok(())
            }
            Probe::Nodes => nodes(settings, ROLLOUT_BUDGET),
        }
    }
}

/// Returns the number of the DaemonSet's nodes, or what is missing. A field that the API server omits is 0.
fn verified(daemonset: &Value) -> anyhow::Result<u64> {
    rollout("the DaemonSet", daemonset)?;
    let number = |field: &str| daemonset["status"][field].as_u64().unwrap_or_default();
    let (nodes, ready) = (number("desiredNumberScheduled"), number("numberReady"));
    ensure!(ready >= nodes, "the agent is ready on {ready} of {nodes} nodes");
    Ok(nodes)
}

/// Fails unless the agents of all nodes are ready before `within` has passed.
fn nodes(settings: &Settings, within: Duration) -> anyhow::Result<()> {
    let source = source(settings).context("KUBERNETES_SERVICE_HOST and _PORT are not set")?;
    let namespace = namespace(settings).context("LINKERD_CNI_NAMESPACE is not set")?;
    let path = daemonset_path(&namespace, "linkerd-cni");
    let mut connection = Connection::new(source, USER_AGENT, Deadlines::each(ATTEMPT_TIMEOUT));
    let nodes = retry(within, || verified(&connection.client()?.get(&path)?));
    let nodes = nodes.map_err(|problem| {
        anyhow!("{problem:#}; see `kubectl get pods -n {namespace} -l k8s-app=linkerd-cni -o wide`")
    })?;
    tracing::info!("the agent is ready on each of {nodes} nodes");
    Ok(())
}

/// Repeats `attempt` until it succeeds. Returns its error if it fails after `within`.
fn retry<T>(within: Duration, mut attempt: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(problem) if start.elapsed() < within => tracing::debug!("{problem:#}"),
            result => return result,
        }
        thread::sleep(PAUSE);
    }
}

fn response(token: &str, port: u16) -> String {
    format!("{token} {port}\n")
}

/// Returns one address for each family that is to be redirected. Fails if there is none.
fn targets(pod_ips: &[IpAddr], no_ipv6: bool) -> anyhow::Result<Vec<IpAddr>> {
    let mut families = UNUSED_ADDRESSES.to_vec();
    families.retain(|target| {
        let has = |ip: &IpAddr| ip.is_ipv4() == target.is_ipv4();
        pod_ips.iter().any(has) && (target.is_ipv4() || !no_ipv6)
    });
    ensure!(
        !families.is_empty(),
        "the pod has no address of a redirected IP family ({pod_ips:?}): \
         in an IPv6-only cluster, set disableIPv6=false in the chart"
    );
    Ok(families)
}

fn serve(token: &str, ports: &[u16]) -> anyhow::Result<()> {
    let mut listeners = Vec::new();
    for port in ports {
        // All addresses of both families.
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port));
        let listener = admin::listener(address);
        listeners.push((*port, listener.with_context(|| format!("cannot listen on port {port}"))?));
    }
    tracing::info!("listening on {ports:?}");
    let connected = AtomicBool::new(false);
    thread::scope(|scope| {
        for (port, listener) in &listeners {
            let (line, connected) = (response(token, *port), &connected);
            scope.spawn(move || reply_to_all(listener, &line, connected));
        }
        thread::sleep(RETRY_BUDGET);
        if !connected.load(Ordering::Relaxed) {
            tracing::error!(
                "no connection was redirected to {ports:?} within {} s: the container runtime did not call the \
                 plugin for this pod, or the plugin skipped the pod; see the log of the agent on its node, and \
                 `linkerd cni check`",
                RETRY_BUDGET.as_secs()
            );
        }
    });
    Ok(())
}

fn reply_to_all(listener: &TcpListener, line: &str, connected: &AtomicBool) {
    for stream in listener.incoming() {
        connected.store(true, Ordering::Relaxed);
        let replied = stream.and_then(|stream| reply(stream, line));
        if let Err(error) = replied {
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
    io::copy(&mut stream.take(1 << 10), &mut io::sink()).map(drop)
}

/// Retries until `address` responds with `response`. Fails after `within`.
fn expect(address: SocketAddr, response: &str, within: Duration) -> anyhow::Result<()> {
    let attempt = || {
        let stream = TcpStream::connect_timeout(&address, ATTEMPT_TIMEOUT)?;
        stream.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
        let mut line = String::new();
        BufReader::new(stream.take(1 << 10)).read_line(&mut line)?;
        ensure!(line == response, "unexpected response");
        Ok(())
    };
    retry(within, attempt).map_err(|problem| {
        anyhow!(
            "a connection to {address} was not redirected to the proxy: {problem}; \
             see the Events of this pod and the log of the agent on its node"
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Starts a server that responds as `serve` does on `port`. Returns its address, with another port.
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
        let wanted = response("token", 4140);
        let cases = [
            (fake_proxy("token", 4140), None),
            (fake_proxy("token", 4143), Some("unexpected response")),
            (fake_proxy("other", 4140), Some("unexpected response")),
            // Nobody listens there.
            ("127.0.0.1:1".parse().unwrap(), Some("refused")),
        ];
        for (address, problem) in cases {
            let result = expect(address, &wanted, Duration::ZERO);
            let message = result.err().map(|error| error.to_string());
            match (&message, problem) {
                (None, None) => {}
                (Some(message), Some(problem)) => assert!(message.contains(problem), "{message}"),
                _ => panic!("{problem:?}: {message:?}"),
            }
        }
    }

    #[test]
    fn the_probe_retries_until_the_server_has_started() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wanted = response("token", 4140);
        let line = wanted.clone();
        thread::spawn(move || {
            // The first connection gets no response.
            drop(listener.accept());
            reply_to_all(&listener, &line, &AtomicBool::default());
        });
        expect(address, &wanted, Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn nodes_are_verified_if_each_has_the_current_agent_and_it_is_ready() {
        for (observed, nodes, updated, ready, expected) in [
            (3, 5, 5, 5, Ok(5)),
            (2, 5, 5, 5, Err("has not processed the newest change of the DaemonSet")),
            (3, 0, 0, 0, Err("no node is in the scope of the DaemonSet")),
            (3, 5, 4, 5, Err("4 of 5 nodes have a pod of the newest revision of the DaemonSet")),
            (3, 5, 5, 4, Err("ready on 4 of 5 nodes")),
        ] {
            let status = serde_json::json!({
                "observedGeneration": observed, "desiredNumberScheduled": nodes,
                "updatedNumberScheduled": updated, "numberReady": ready,
            });
            let daemonset = serde_json::json!({"metadata": {"generation": 3}, "status": status});
            match (verified(&daemonset), expected) {
                (Ok(number), Ok(expected)) => assert_eq!(number, expected),
                (Err(problem), Err(part)) => {
                    assert!(problem.to_string().contains(part), "{problem}")
                }
                (result, _) => panic!("{status}: {result:?}"),
            }
        }
        // The API server omits updatedNumberScheduled if it is 0, and a new DaemonSet has no status.
        assert!(verified(&serde_json::json!({"metadata": {"generation": 1}})).is_err());
    }

    #[test]
    fn each_redirected_family_of_the_pod_is_probed() {
        let four: IpAddr = "10.0.0.1".parse().unwrap();
        let six: IpAddr = "fd00::1".parse().unwrap();
        for (ips, no_ipv6, expected) in [
            (vec![four], true, Some(vec![UNUSED_ADDRESSES[0]])),
            (vec![four], false, Some(vec![UNUSED_ADDRESSES[0]])),
            (vec![six, four], false, Some(UNUSED_ADDRESSES.to_vec())),
            (vec![six, four], true, Some(vec![UNUSED_ADDRESSES[0]])),
            (vec![six], false, Some(vec![UNUSED_ADDRESSES[1]])),
            (vec![six], true, None),
        ] {
            assert_eq!(targets(&ips, no_ipv6).ok(), expected, "{ips:?} {no_ipv6}");
        }
    }
}
