use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{Handlers, MAX_CLIENTS, REQUEST_LIMIT, listen, serve};

/// Starts a server that is not ready.
fn start_server() -> SocketAddr {
    let handlers = Handlers {
        live: Box::new(|| Ok(())),
        ready: Box::new(|| Err("the kubeconfig is missing".into())),
        metrics: Box::new(|| "# EOF\n".into()),
        status: Some(Box::new(|| "{}".into())),
    };
    serve("127.0.0.1:0".parse().unwrap(), handlers).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    read_response(stream)
}

fn read_response(mut stream: TcpStream) -> String {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn status_and_body(response: &str) -> (&str, &str) {
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap();
    (status.strip_prefix("HTTP/1.1 ").unwrap(), body)
}

#[test]
fn server_responds_to_each_path() {
    let address = start_server();
    let not_ready = "not ready: the kubeconfig is missing\n";
    for (request, status, body) in [
        ("GET /live HTTP/1.1", "200 OK", "alive\n"),
        ("GET /live?verbose HTTP/1.0", "200 OK", "alive\n"),
        ("GET /ready HTTP/1.1", "500 Internal Server Error", not_ready),
        ("GET /metrics HTTP/1.1", "200 OK", "# EOF\n"),
        ("GET /status HTTP/1.1", "200 OK", "{}"),
        ("GET / HTTP/1.1", "404 Not Found", ""),
        ("GET /lively HTTP/1.1", "404 Not Found", ""),
        ("POST /live HTTP/1.1", "400 Bad Request", ""),
        ("GET /live", "400 Bad Request", ""),
        ("nonsense", "400 Bad Request", ""),
        ("", "400 Bad Request", ""),
    ] {
        let response = exchange(address, &format!("{request}\r\nHost: a\r\n\r\n"));
        assert_eq!(status_and_body(&response), (status, body), "{request}");
        assert!(response.contains("\r\nConnection: close\r\n"), "{request}");
        let openmetrics =
            "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
        assert_eq!(response.contains(openmetrics), request.contains("/metrics"), "{request}");
    }
}

#[test]
fn request_that_arrives_in_pieces_gets_a_response() {
    let address = start_server();
    let mut stream = connect(address);
    for piece in ["GET /li", "ve HTTP/1.1\r", "\n\r", "\n"] {
        stream.write_all(piece.as_bytes()).unwrap();
        stream.flush().unwrap();
    }
    assert_eq!(status_and_body(&read_response(stream)), ("200 OK", "alive\n"));
}

#[test]
fn request_that_is_too_large_is_rejected() {
    let address = start_server();
    let mut stream = connect(address);
    // The write may fail, because the server may respond and close before it has read the whole
    // request.
    let _ = stream.write_all(&vec![b'a'; REQUEST_LIMIT as usize + 1]);
    assert_eq!(status_and_body(&read_response(stream)), ("400 Bad Request", ""));
}

#[test]
fn silent_clients_do_not_delay_another_client() {
    let address = start_server();
    let silent: Vec<TcpStream> = (0..3 * MAX_CLIENTS).map(|_| connect(address)).collect();
    let began = Instant::now();
    let response = exchange(address, "GET /live HTTP/1.1\r\n\r\n");
    assert_eq!(status_and_body(&response), ("200 OK", "alive\n"));
    // This is far below the timeout of a silent client, so the server has not waited for any of
    // them.
    assert!(began.elapsed() < Duration::from_secs(2));
    drop(silent);
}

#[test]
fn silent_client_is_disconnected_after_the_timeout() {
    let address = start_server();
    let mut silent = connect(address);
    let mut rest = Vec::new();
    assert_eq!(silent.read_to_end(&mut rest).unwrap(), 0);
}

#[test]
fn listen_does_not_fall_back_to_ipv4_if_the_port_is_in_use() {
    let first = listen("[::]:0".parse().unwrap()).unwrap();
    let error = listen(first.local_addr().unwrap()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}
