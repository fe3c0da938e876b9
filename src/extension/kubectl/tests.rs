use std::os::unix::net::UnixListener;
use std::path::Path;

use super::*;
use crate::deadline::run_within;
use crate::extension::requests::{get, get_optional};

/// A program in place of kubectl: `sh -c SCRIPT`, whose arguments are those of kubectl.
fn fake(script: &str, deadline: Duration) -> Kubectl {
    let flags = vec!["-c".to_owned(), script.to_owned()];
    Kubectl { program: "/bin/sh".into(), deadline, ..Kubectl::new(flags) }
}

const LONG: Duration = Duration::from_secs(60);

/// An API server that sends this response to each request.
struct Responded(&'static str);

impl Api for Responded {
    fn body(&self, _: &str) -> Result<String, Error> {
        parse_response(self.0)
    }
}

#[test]
fn errors_distinguish_the_api_server_from_kubectl() {
    let missing = "HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n\
        {\"kind\":\"Status\",\"reason\":\"NotFound\",\"message\":\"no x\"}";
    let error = get::<u8>(&Responded(missing), "/x").unwrap_err();
    assert_eq!(error.to_string(), "no x (NotFound)");
    assert!(get_optional::<()>(&Responded(missing), "/x").unwrap().is_none());
    // A proxy in front of the API server does not know whether the object exists.
    let of_proxy =
        "HTTP/1.0 404 Not Found\r\n\r\n{\"reason\":\"NotFound\",\"message\":\"no route\"}";
    let error = get_optional::<()>(&Responded(of_proxy), "/x").unwrap_err();
    assert_eq!(error.to_string(), "no route (HTTP 404)");
    let forbidden = "HTTP/1.0 403 Forbidden\r\n\r\n\
        {\"kind\":\"Status\",\"reason\":\"Forbidden\",\"message\":\"no\"}";
    let error = get::<u8>(&Responded(forbidden), "/x").unwrap_err().to_string();
    assert!(error.starts_with("no (Forbidden); grant this right to the user"), "{error}");
    let refused = Responded("HTTP/1.0 500 Internal\r\n\r\ndial tcp: connection refused\n");
    let error = get::<u8>(&refused, "/x").unwrap_err().to_string();
    let wanted = "dial tcp: connection refused (HTTP 500); check with kubectl version ";
    assert!(error.starts_with(wanted), "{error}");
    let error = get::<u8>(&Responded("HTTP/1.0 200 OK\r\n\r\n{}"), "/x").unwrap_err();
    assert!(error.to_string().starts_with("/x: unexpected response: "), "{error}");
    assert!(get::<u8>(&Responded("cut"), "/x").is_err());
}

#[test]
fn each_request_fails_if_kubectl_proxy_does_not_start() {
    let api = fake("printf 'refused\\nIs it running?' >&2; exit 1", LONG);
    for _ in 0..2 {
        let error = api.body("/x").unwrap_err().to_string();
        let wanted = "kubectl failed: refused; Is it running?; check with kubectl version ";
        assert!(error.starts_with(wanted), "{error}");
    }
    let api = fake("exec sleep 60", Duration::from_millis(100));
    let error = api.body("/x").unwrap_err();
    assert!(error.to_string().contains("credential plugin"), "{error}");
}

const SHORT: Duration = Duration::from_millis(300);

/// Starts a program in place of kubectl that opens this socket and hangs, however busy the machine
/// is. Requests have a deadline of [`SHORT`].
fn started(socket: &Path, begin: &str, hang: &str) -> Kubectl {
    let link = format!("for path; do :; done; ln -s {} $path", socket.display());
    let script = format!("{begin}; {link}; {hang}");
    let proxy = fake(&script, LONG).start_proxy();
    let api = fake(&script, SHORT);
    api.proxy.set(proxy).unwrap();
    api
}

#[test]
fn hanging_kubectl_is_killed_with_its_children() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (directory.path().join("api"), directory.path().join("id"));
    let _listener = UnixListener::bind(&socket).unwrap();
    for (begin, hang) in
        [("echo $$ >FILE", "exec sleep 600"), ("sleep 600 & echo $! >FILE", "wait")]
    {
        drop(started(&socket, &begin.replace("FILE", file.to_str().unwrap()), hang));
        child::tests::assert_ends(&file);
        fs::remove_file(&file).unwrap();
    }
}

/// Begins a response to each connection, and sends one more byte at a time until the client leaves.
fn drip(listener: &UnixListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut sent = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
        while sent.is_ok() {
            thread::sleep(SHORT / 10);
            sent = stream.write_all(b" ");
        }
    }
}

#[test]
fn request_fails_if_the_response_is_missing_or_endless() {
    let directory = tempfile::tempdir().unwrap();
    let [silent, dripping] = ["silent", "dripping"].map(|name| directory.path().join(name));
    let _silent = UnixListener::bind(&silent).unwrap();
    let listener = UnixListener::bind(&dripping).unwrap();
    thread::spawn(move || drip(&listener));
    for (socket, budget) in [(silent, SHORT), (dripping, SHORT * RESPONSE_DEADLINES)] {
        let api = started(&socket, ":", "exec sleep 600");
        let response = run_within("request", LONG, move || api.body("/x"));
        match response.expect("the request ends") {
            Err(Error::Deadline(found)) => assert_eq!(found, budget),
            other => panic!("{other:?}"),
        }
    }
}
