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

/// What Linkerd's validator exits with on any failure; the repair controller looks for it.
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

/// Signals are blocked and waited for: PID 1 has no default handlers, but blocked signals do reach
/// it.
fn block(signals: &[Signal]) -> anyhow::Result<SigSet> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block().context("block signals")?;
    Ok(set)
}

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
    let (mut name, mut listeners) = ("", Vec::new());
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
                    let line = answer(name, &stream);
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

/// Without a redirection the destination is this program itself.
fn relay(client: TcpStream) -> io::Result<()> {
    let local = client.local_addr()?;
    let chosen = original_destination(&client).filter(|address| *address != local);
    let server = TcpStream::connect(chosen.ok_or(ErrorKind::AddrNotAvailable)?)?;
    thread::scope(|scope| {
        scope.spawn(|| pass(&client, &server));
        pass(&server, &client)
    })
}

/// Sends to `to` what `from` sends, until that closes.
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

fn answer(name: &str, stream: &TcpStream) -> String {
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

/// Reads what the client sent before closing, as a reset could overtake the answer.
fn reply(mut stream: TcpStream, line: &str) {
    let _ = stream.write_all(line.as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = io::copy(&mut stream.take(1 << 16), &mut io::sink());
}

fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    if stream.local_addr().ok()?.is_ipv4() {
        let a = getsockopt(stream, sockopt::OriginalDst).ok()?;
        let ip = u32::from_be(a.sin_addr.s_addr).into();
        Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
    } else {
        let a = getsockopt(stream, sockopt::Ip6tOriginalDst).ok()?;
        let ip = a.sin6_addr.s6_addr.into();
        Some(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, 0).into())
    }
}

/// A listener for exactly one family, so that `0.0.0.0:80` and `[::]:80` go together.
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

fn line_from(address: SocketAddr, timeout: Duration) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

fn validate(to: SocketAddr, at: SocketAddr, timeout: Duration) -> anyhow::Result<ExitCode> {
    exit_on_signal(NOT_REDIRECTED)?;
    Ok(match reaches_itself(to, at, timeout) {
        Ok(()) => {
            println!("Validated");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!(
                "Failed to validate networking configuration. Please ensure traffic redirection \
                 rules are rewriting traffic as expected. timeout={timeout:?}: {error:#}"
            );
            ExitCode::from(NOT_REDIRECTED)
        }
    })
}

fn reaches_itself(to: SocketAddr, at: SocketAddr, timeout: Duration) -> anyhow::Result<()> {
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
    let got = line_from(to, timeout).with_context(|| format!("connect to {to}"))?;
    ensure!(start.elapsed() <= timeout, "too late");
    ensure!(got == token, "{to} is somebody else");
    Ok(())
}
