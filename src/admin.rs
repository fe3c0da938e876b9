//! `/live`, `/ready` and `/metrics`. A stand-in of the agreed shape.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub struct Answers {
    pub ready: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
}

pub fn serve(listener: TcpListener, answers: Answers) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &answers);
        }
    })
}

fn answer(mut stream: TcpStream, answers: &Answers) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let (status, body) = match line.split(' ').nth(1) {
        Some("/live") => ("200 OK", "alive\n".to_owned()),
        Some("/ready") => match (answers.ready)() {
            Ok(()) => ("200 OK", "ready\n".to_owned()),
            Err(why) => ("500 Internal Server Error", why),
        },
        Some("/metrics") => ("200 OK", (answers.metrics)()),
        _ => ("404 Not Found", String::new()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
