//! A TCP server, client and forwarder in one static program, for pods that have nothing else in
//! their image.
//!
//! A server sends each client one line: the server's name, and the destination that the client
//! chose. Tests so see a redirection rather than infer it. It is also the pause program of the
//! one-node cluster and stands in for Linkerd's network validator. In the image of the tests' pods
//! it is `/probe`. It is a package of its own, so that this image needs few crates compiled.
//! `scripts/cluster` builds the image anew if this file changes, so the program has no other file.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::{ExitCode, exit};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, getsockopt, listen,
    setsockopt, socket, sockopt,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// Exit code of Linkerd's validator after any failure. The repair controller looks for it.
const NOT_REDIRECTED: u8 = 95;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Parser)]
enum Options {
    /// Serves. A name holds for the addresses that follow it.
    Serve {
        #[arg(required = true, value_name = "NAME ADDR...")]
        words: Vec<String>,
    },
    /// Connects each client to the destination that it chose, as a proxy does.
    Forward {
        #[arg(required = true)]
        addresses: Vec<SocketAddr>,
    },
    /// Prints the line of a server, `closed`, `refused` or `timeout`.
    Connect {
        address: SocketAddr,
    },
    /// As Linkerd's network validator: connects outwards and must reach its own listener.
    Validate {
        #[arg(long)]
        connect: SocketAddr,
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long, value_parser = humantime::parse_duration)]
        timeout: Duration,
    },
    Wait {
        #[arg(value_parser = humantime::parse_duration)]
        time: Duration,
    },
    Pause,
}

fn main() -> ExitCode {
    let result = match Options::parse() {
        Options::Serve { words } => serve(&words),
        Options::Forward { addresses } => forward(&addresses),
        Options::Connect { address } => Ok(connect(address)),
        Options::Validate { connect, listen, timeout } => validate(connect, listen, timeout),
        Options::Wait { time } => wait(time),
        Options::Pause => pause(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}

/// Blocks these signals, so that the caller can wait for them. This program may be PID 1, which has
/// no default handlers for signals. Blocked signals reach it nevertheless.
fn block(signals: &[Signal]) -> anyhow::Result<SigSet> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block().context("block signals")?;
    Ok(set)
}

/// Exits with this code on SIGTERM and SIGINT.
fn exit_on_signal(code: u8) -> anyhow::Result<()> {
    let signals = block(&[Signal::SIGTERM, Signal::SIGINT])?;
    thread::spawn(move || {
        let _ = signals.wait();
        exit(code.into())
    });
    Ok(())
}

fn pause() -> anyhow::Result<ExitCode> {
    let signals = block(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD])?;
    while signals.wait()? == Signal::SIGCHLD {
        while waitpid(None, Some(WaitPidFlag::WNOHANG))
            .is_ok_and(|status| status != WaitStatus::StillAlive)
        {}
    }
    Ok(ExitCode::SUCCESS)
}

fn wait(time: Duration) -> anyhow::Result<ExitCode> {
    exit_on_signal(0)?;
    thread::sleep(time);
    Ok(ExitCode::SUCCESS)
}

fn serve(words: &[String]) -> anyhow::Result<ExitCode> {
    exit_on_signal(0)?;
    let mut name = "";
    let mut listeners = Vec::new();
    for word in words {
        if word.contains(':') {
            listeners.push((name, listen_on(word.parse()?)?));
        } else {
            name = word;
        }
    }
    println!("listening on {}", words[1..].join(" "));
    thread::scope(|scope| {
        for (name, listener) in &listeners {
            scope.spawn(move || {
                accept(listener, |stream| {
                    let line = server_line(name, &stream);
                    thread::spawn(move || reply(stream, &line));
                });
            });
        }
    });
    Ok(ExitCode::SUCCESS)
}

fn forward(addresses: &[SocketAddr]) -> anyhow::Result<ExitCode> {
    exit_on_signal(0)?;
    let listeners: Vec<TcpListener> =
        addresses.iter().map(|address| listen_on(*address)).collect::<Result<_, _>>()?;
    thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| accept(listener, |client| drop(thread::spawn(|| relay(client)))));
        }
    });
    Ok(ExitCode::SUCCESS)
}

/// Connects a client to the destination that it chose, and passes data in both directions. Fails if
/// the client was not redirected, because then it chose this program itself.
fn relay(client: TcpStream) -> io::Result<()> {
    let Some(destination) = original_destination(&client) else {
        return Err(ErrorKind::AddrNotAvailable.into());
    };
    if destination == client.local_addr()? {
        return Err(ErrorKind::AddrNotAvailable.into());
    }
    let server = TcpStream::connect(destination)?;
    thread::scope(|scope| {
        scope.spawn(|| pass(&client, &server));
        pass(&server, &client)
    })
}

/// Sends to `to` what `from` sends, until `from` closes the connection.
fn pass(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    match io::copy(&mut from, &mut to) {
        Ok(_) => to.shutdown(Shutdown::Write),
        // A side that was reset takes no more data.
        Err(_) => to.shutdown(Shutdown::Both),
    }
}

fn accept(listener: &TcpListener, serve: impl Fn(TcpStream)) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => serve(stream),
            Err(error) => {
                eprintln!("accept: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Returns the line for a client: the server's name, and the destination that the client chose.
fn server_line(name: &str, stream: &TcpStream) -> String {
    let local = or_dash(stream.local_addr().ok());
    let original = or_dash(original_destination(stream));
    format!("{name} local={local} original={original}\n")
}

fn or_dash(address: Option<SocketAddr>) -> String {
    match address {
        Some(address) => address.to_string(),
        None => "-".to_owned(),
    }
}

/// Sends a line, and closes the connection. Reads what the client has sent before that, because the
/// kernel would otherwise send a reset, which could overtake the line.
fn reply(mut stream: TcpStream, line: &str) {
    let _ = stream.write_all(line.as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = io::copy(&mut stream.take(1 << 16), &mut io::sink());
}

fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    if stream.local_addr().ok()?.is_ipv4() {
        let address = getsockopt(stream, sockopt::OriginalDst).ok()?;
        let ip = u32::from_be(address.sin_addr.s_addr).into();
        Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
    } else {
        let address = getsockopt(stream, sockopt::Ip6tOriginalDst).ok()?;
        let ip = address.sin6_addr.s6_addr.into();
        Some(SocketAddrV6::new(ip, u16::from_be(address.sin6_port), 0, 0).into())
    }
}

/// Listens on an address of one family only, so that a second listener can have the same port in
/// the other family.
fn listen_on(address: SocketAddr) -> anyhow::Result<TcpListener> {
    listening_socket(address).with_context(|| format!("listen on {address}"))
}

fn listening_socket(address: SocketAddr) -> nix::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&fd, Backlog::new(128)?)?;
    Ok(fd.into())
}

fn connect(address: SocketAddr) -> ExitCode {
    match line_from(address, CONNECT_TIMEOUT) {
        Ok(line) if line.is_empty() => println!("closed"),
        Ok(line) => {
            println!("{}", line.trim_end());
            return ExitCode::SUCCESS;
        }
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => println!("refused"),
            ErrorKind::TimedOut | ErrorKind::WouldBlock => println!("timeout"),
            _ => println!("failed: {error}"),
        },
    }
    ExitCode::FAILURE
}

/// Connects to a server, and returns its line.
fn line_from(address: SocketAddr, timeout: Duration) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

/// Prints and exits like Linkerd's network validator.
fn validate(to: SocketAddr, at: SocketAddr, timeout: Duration) -> anyhow::Result<ExitCode> {
    exit_on_signal(NOT_REDIRECTED)?;
    if let Err(error) = connect_to_own_listener(to, at, timeout) {
        eprintln!(
            "Failed to validate networking configuration. Please ensure traffic redirection \
             rules are rewriting traffic as expected. timeout={timeout:?}: {error:#}"
        );
        return Ok(ExitCode::from(NOT_REDIRECTED));
    }
    println!("Validated");
    Ok(ExitCode::SUCCESS)
}

/// Listens at `at`, and connects to `to`. Fails unless the connection is redirected to the
/// listener.
fn connect_to_own_listener(
    to: SocketAddr,
    at: SocketAddr,
    timeout: Duration,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let listener = listen_on(at)?;
    // std seeds RandomState randomly, so no crate for random numbers is needed.
    let token = format!("{:016x}\n", RandomState::new().build_hasher().finish());
    let line = token.clone();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            reply(stream, &line);
        }
    });
    let received = line_from(to, timeout).with_context(|| format!("connect to {to}"))?;
    ensure!(start.elapsed() <= timeout, "too late");
    ensure!(received == token, "{to} is somebody else");
    Ok(())
}
