//! Both ends of a connection that only the plugin's rules can bring about: what
//! `helm test` runs in a meshed pod, with the agent's image, as that is on the node.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// Addresses for documentation: nobody has them, so nobody but a proxy answers there.
const NOWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// One try to connect, and to get an answer.
const TRY: Duration = Duration::from_secs(5);
/// How long to go on trying, as the stand-in may still be starting.
const WITHIN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);

/// The two parts; both are told the same token, so that an answer from elsewhere, such
/// as another proxy on the way, is not taken for ours.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Probe {
    /// Stand in for the proxy: answer each connection to one of the ports with the
    /// token and that port, until killed
    Serve {
        #[arg(long, env = "LINKERD_CNI_PROBE_TOKEN")]
        token: String,
        #[arg(required = true)]
        ports: Vec<u16>,
    },
    /// Connect to an address that nobody has, for each IP family of the pod, and fail
    /// unless the stand-in answers
    Outbound {
        #[arg(long, env = "LINKERD_CNI_PROBE_TOKEN")]
        token: String,
        /// The pod's own addresses, comma-separated, which tell its IP families
        #[arg(long, env = "LINKERD_CNI_PROBE_POD_IPS", value_delimiter = ',')]
        pod_ips: Vec<IpAddr>,
        /// The chart says that IPv6 is not redirected, so do not expect it
        #[arg(long)]
        no_ipv6: bool,
        /// The port to connect to
        port: u16,
        /// The proxy's port, on which the stand-in should get the connection
        proxy_port: u16,
    },
}

impl Probe {
    pub fn run(&self) -> anyhow::Result<()> {
        match self {
            Probe::Serve { token, ports } => serve(token, ports),
            Probe::Outbound {
                token,
                pod_ips,
                no_ipv6,
                port,
                proxy_port,
            } => {
                let answer = answer(token, *proxy_port);
                for ip in targets(pod_ips, *no_ipv6)? {
                    let address = SocketAddr::new(ip, *port);
                    expect(address, &answer, WITHIN)?;
                    tracing::info!("a connection to {address} was redirected to {proxy_port}");
                }
                Ok(())
            }
        }
    }
}

/// What the stand-in says on one of its ports.
fn answer(token: &str, port: u16) -> String {
    format!("{token} {port}\n")
}

/// Where to connect to: one address for each family that should be redirected.
fn targets(pod_ips: &[IpAddr], no_ipv6: bool) -> anyhow::Result<Vec<IpAddr>> {
    let mut families = NOWHERE.to_vec();
    families.retain(|target| {
        let has = |ip: &IpAddr| ip.is_ipv4() == target.is_ipv4();
        pod_ips.iter().any(has) && (target.is_ipv4() || !no_ipv6)
    });
    if families.is_empty() {
        bail!(
            "no address of the pod ({pod_ips:?}) is of a family that is redirected: \
             in a cluster with IPv6 alone the chart needs disableIPv6=false"
        );
    }
    Ok(families)
}

fn serve(token: &str, ports: &[u16]) -> anyhow::Result<()> {
    let mut listeners = Vec::new();
    for port in ports {
        let bound = listen(*port).with_context(|| format!("cannot listen on port {port}"))?;
        listeners.extend(bound.into_iter().map(|listener| (*port, listener)));
    }
    tracing::info!("listening on {ports:?}");
    thread::scope(|scope| {
        for (port, listener) in &listeners {
            let line = answer(token, *port);
            scope.spawn(move || reply_to_all(listener, &line));
        }
    });
    Ok(())
}

/// Listeners for both families, or for the one that the kernel has.
fn listen(port: u16) -> io::Result<Vec<TcpListener>> {
    // Where the first takes IPv4 as well, as it does by default, the second fails.
    let first = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    let second = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    match (first, second) {
        (Err(_), Err(error)) => Err(error),
        (first, second) => Ok([first, second].into_iter().flatten().collect()),
    }
}

fn reply_to_all(listener: &TcpListener, line: &str) {
    for stream in listener.incoming() {
        let replied = stream.and_then(|stream| reply(stream, line));
        if let Err(error) = replied {
            tracing::debug!("{error}");
            thread::sleep(PAUSE);
        }
    }
}

/// Reads what the client has to say before closing, as a reset could overtake the line.
fn reply(mut stream: TcpStream, line: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(TRY))?;
    stream.write_all(line.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream.take(1 << 10), &mut io::sink())?;
    Ok(())
}

/// Tries until somebody answers so.
fn expect(address: SocketAddr, answer: &str, within: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let problem = match line_from(address) {
            Ok(line) if line == answer => return Ok(()),
            Ok(_) => "somebody else answered".to_owned(),
            Err(error) => error.to_string(),
        };
        if start.elapsed() >= within {
            bail!(
                "a connection to {address} was not redirected to the proxy: {problem}; \
                 see the events of this pod and the logs of the agent on its node"
            );
        }
        tracing::debug!("{address}: {problem}");
        thread::sleep(PAUSE);
    }
}

fn line_from(address: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, TRY)?;
    stream.set_read_timeout(Some(TRY))?;
    let mut line = String::new();
    BufReader::new(stream.take(1 << 10)).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Where a stand-in for `port` listens, in truth another port.
    fn stand_in(token: &'static str, port: u16) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || reply_to_all(&listener, &answer(token, port)));
        address
    }

    #[test]
    fn only_the_stand_in_on_the_proxys_port_is_believed() {
        let wanted = answer("token", 4140);
        let cases = [
            (stand_in("token", 4140), None),
            (stand_in("token", 4143), Some("somebody else answered")),
            (stand_in("other", 4140), Some("somebody else answered")),
            // Nobody listens there.
            ("127.0.0.1:1".parse().unwrap(), Some("refused")),
        ];
        for (address, problem) in cases {
            let result = expect(address, &wanted, Duration::ZERO);
            let said = result.err().map(|error| error.to_string());
            match (&said, problem) {
                (None, None) => {}
                (Some(said), Some(problem)) => assert!(said.contains(problem), "{said}"),
                _ => panic!("{problem:?}: {said:?}"),
            }
        }
    }

    #[test]
    fn a_stand_in_that_starts_late_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wanted = answer("token", 4140);
        let line = wanted.clone();
        thread::spawn(move || {
            // The first connection gets no answer.
            drop(listener.accept());
            reply_to_all(&listener, &line);
        });
        expect(address, &wanted, Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn each_family_of_the_pod_that_is_redirected_is_tried() {
        let four: IpAddr = "10.0.0.1".parse().unwrap();
        let six: IpAddr = "fd00::1".parse().unwrap();
        for (ips, no_ipv6, expected) in [
            (vec![four], true, Some(vec![NOWHERE[0]])),
            (vec![four], false, Some(vec![NOWHERE[0]])),
            (vec![six, four], false, Some(NOWHERE.to_vec())),
            (vec![six, four], true, Some(vec![NOWHERE[0]])),
            (vec![six], false, Some(vec![NOWHERE[1]])),
            (vec![six], true, None),
        ] {
            assert_eq!(targets(&ips, no_ipv6).ok(), expected, "{ips:?} {no_ipv6}");
        }
    }
}
