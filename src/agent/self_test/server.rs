//! A Kubernetes API of one meshed pod, on loopback, for as long as one trial takes: the
//! plugin asks for a pod, and a pod that never was cannot be asked of the real one.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::socket::{self, Shutdown as Both};
use serde_json::json;

/// How long one request may take to arrive.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request that is read, in bytes.
const LIMIT: usize = 16 << 10;

pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    pub fn open() -> io::Result<Server> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        Ok(Server { listener, address })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers until [`Server::close`].
    pub fn run(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // A client that goes away is its own affair.
            let _ = answer(stream);
        }
    }

    /// Ends [`Server::run`], on whatever thread it is.
    pub fn close(&self) {
        let _ = socket::shutdown(self.listener.as_raw_fd(), Both::Both);
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut chunk)?;
        if read == 0 || request.len() > LIMIT {
            return Ok(());
        }
        request.extend_from_slice(&chunk[..read]);
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or(&[]);
    let body = object(&String::from_utf8_lossy(line));
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.shutdown(Shutdown::Write)
}

/// The pod, or what is around it.
fn object(request: &str) -> String {
    let object = match request.contains("/pods/") {
        true => json!({
            "kind": "Pod",
            "metadata": {},
            "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]},
        }),
        false => json!({"metadata": {}}),
    };
    object.to_string()
}
