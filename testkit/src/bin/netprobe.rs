//! A TCP server and client in one static program, for pods that have nothing else in their image.
//!
//! A server sends each client one line: the server's name, and the destination that the client
//! chose. Tests so see a redirection rather than infer it. It is also the pause program of the
//! one-node cluster and stands in for Linkerd's network validator. In the image of the tests' pods
//! it is `/probe`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream};
use std::process::{ExitCode, exit};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, getsockopt, listen,
    setsockopt, socket, sockopt,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

const USAGE: &str = "\
usage: netprobe serve NAME ADDR... [NAME ADDR...]...
       netprobe connect ADDR [--timeout-ms N]
       netprobe validate --connect ADDR --listen ADDR [--timeout N[ms|s|m]]
       netprobe wait N[ms|s|m]
       netprobe pause";
/// What Linkerd's validator exits with on any failure; the repair controller looks for it.
const NOT_REDIRECTED: u8 = 95;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["serve", name, addresses @ ..] if !addresses.is_empty() => serve(name, addresses),
        ["connect", address] => connect(address, "2000"),
        ["connect", address, "--timeout-ms", timeout] => connect(address, timeout),
        ["validate", options @ ..] => validate(options),
        ["wait", time] => wait(time),
        ["pause"] => pause(),
        _ => Err(USAGE.to_owned()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}

/// Signals are blocked and waited for: PID 1 has no default handlers, but blocked signals do reach it.
fn block(signals: &[Signal]) -> Result<SigSet, String> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block().map_err(|error| format!("block signals: {error}"))?;
    Ok(set)
}

fn exit_on_signal(code: i32) -> Result<(), String> {
    let signals = block(&[Signal::SIGTERM, Signal::SIGINT])?;
    thread::spawn(move || {
        let _ = signals.wait();
        exit(code)
    });
    Ok(())
}

fn pause() -> Result<ExitCode, String> {
    let signals = block(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD])?;
    while signals.wait().map_err(|error| format!("wait: {error}"))? == Signal::SIGCHLD {
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn wait(time: &str) -> Result<ExitCode, String> {
    exit_on_signal(0)?;
    thread::sleep(milliseconds(time)?);
    Ok(ExitCode::SUCCESS)
}

/// A name holds for the addresses that follow it.
fn serve<'a>(mut name: &'a str, words: &[&'a str]) -> Result<ExitCode, String> {
    exit_on_signal(0)?;
    let mut listeners = Vec::new();
    for word in words {
        match word.contains(':') {
            true => listeners.push((name, bound(parse(word)?)?)),
            false => name = word,
        }
    }
    println!("listening on {}", words.join(" "));
    thread::scope(|scope| {
        for (name, listener) in &listeners {
            scope.spawn(move || accept(name, listener));
        }
    });
    Ok(ExitCode::SUCCESS)
}

fn accept(name: &str, listener: &TcpListener) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let line = answer(name, &stream);
                thread::spawn(move || reply(stream, &line));
            }
            Err(error) => {
                eprintln!("accept: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn answer(name: &str, stream: &TcpStream) -> String {
    let or_dash = |address: Option<SocketAddr>| address.map_or("-".into(), |a| a.to_string());
    let local = or_dash(stream.local_addr().ok());
    let original = or_dash(original_destination(stream));
    format!("{name} local={local} original={original}\n")
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
fn bound(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = || -> nix::Result<TcpListener> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        if address.is_ipv6() {
            setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
        }
        bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(address))?;
        listen(&fd, Backlog::new(128)?)?;
        Ok(fd.into())
    };
    listener().map_err(|error| format!("listen on {address}: {error}"))
}

fn connect(address: &str, timeout: &str) -> Result<ExitCode, String> {
    let timeout = milliseconds(timeout)?;
    match line_from(parse(address)?, timeout) {
        Ok(line) if line.is_empty() => println!("closed"),
        Ok(line) => {
            println!("{}", line.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => println!("refused"),
            ErrorKind::TimedOut | ErrorKind::WouldBlock => println!("timeout"),
            _ => println!("failed: {error}"),
        },
    }
    Ok(ExitCode::FAILURE)
}

fn line_from(address: SocketAddr, timeout: Duration) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

/// As Linkerd's network validator: connects outwards and must reach its own listener.
fn validate(options: &[&str]) -> Result<ExitCode, String> {
    exit_on_signal(i32::from(NOT_REDIRECTED))?;
    let (mut to, mut at) = ("192.0.2.2:1404", "0.0.0.0:4140");
    let mut timeout = "10s";
    for pair in options.chunks(2) {
        match *pair {
            ["--connect" | "--connect-addr", value] => to = value,
            ["--listen" | "--listen-addr", value] => at = value,
            ["--timeout", value] => timeout = value,
            ["--log-format" | "--log-level", _] => {}
            _ => return Err(USAGE.to_owned()),
        }
    }
    let (to, at, timeout) = (parse(to)?, parse(at)?, milliseconds(timeout)?);
    let judged = token().and_then(|token| reaches_itself(to, at, timeout, &token));
    Ok(match judged {
        Ok(()) => {
            println!("Validated");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!(
                "Failed to validate networking configuration. Please ensure traffic redirection \
                 rules are rewriting traffic as expected. timeout={timeout:?}: {error}"
            );
            ExitCode::from(NOT_REDIRECTED)
        }
    })
}

fn reaches_itself(
    to: SocketAddr,
    at: SocketAddr,
    timeout: Duration,
    token: &str,
) -> Result<(), String> {
    let start = Instant::now();
    let listener = bound(at)?;
    let line = token.to_owned();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            reply(stream, &line);
        }
    });
    let got = line_from(to, timeout).map_err(|error| format!("connect to {to}: {error}"))?;
    if start.elapsed() > timeout {
        return Err("too late".into());
    }
    (got == token).then_some(()).ok_or_else(|| format!("{to} is somebody else"))
}

fn token() -> Result<String, String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| format!("read /dev/urandom: {error}"))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(hex + "\n")
}

fn parse(address: &str) -> Result<SocketAddr, String> {
    address.parse().map_err(|_| format!("not an address with a port: {address}"))
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        _ => None,
    };
    let wanted = factor.and_then(|factor| digits.parse::<u64>().ok()?.checked_mul(factor));
    wanted
        .filter(|&ms| ms > 0)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("not a duration: {text}"))
}
