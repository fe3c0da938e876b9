//! The command line of `linkerd2-cni-install probe`.

use std::net::IpAddr;

use crate::agent::settings::Settings;
use crate::probe::{redirection, rollout};

/// The parts of the probe, each run in a container of its own. `serve` and `outbound` get the same
/// token, by which `outbound` recognizes a response of `serve`, and not of another proxy.
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
    /// Runs this part of the probe. `serve` does not return.
    pub fn run(&self, settings: &Settings) -> anyhow::Result<()> {
        match self {
            Probe::Serve { token, ports } => redirection::serve(token, ports),
            Probe::Outbound { token, pod_ips, no_ipv6, port, proxy_port } => {
                let addresses = redirection::unused_addresses(pod_ips, *no_ipv6)?;
                redirection::verify(&addresses, *port, token, *proxy_port)
            }
            Probe::Nodes => rollout::verify(settings),
        }
    }
}
