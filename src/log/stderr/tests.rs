use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::*;

/// What a pipe holds unless its owner changed it (pipe(7)).
const CAPACITY: usize = 64 << 10;

#[test]
fn lines_that_fit_reach_pipes_sockets_and_files_whole() {
    let long = [vec![b'x'; 3 * PIPE_BUF], b"\n".to_vec()].concat();
    let lines: [&[u8]; 3] = [b"first\n", &long, b"last\n"];
    let all = lines.concat();

    let (mut reader, writer) = io::pipe().unwrap();
    write_to(writer.as_fd(), &lines);
    drop(writer);
    assert_eq!(rest_of(&mut reader), all);

    let (mut reader, writer) = UnixStream::pair().unwrap();
    write_to(writer.as_fd(), &lines);
    drop(writer);
    assert_eq!(rest_of(&mut reader), all);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    write_to(File::create(&path).unwrap().as_fd(), &lines);
    assert_eq!(fs::read(&path).unwrap(), all);
}

#[test]
fn what_is_full_closed_or_without_a_reader_drops_the_line() {
    let (reader, writer) = io::pipe().unwrap();
    fill(writer.as_fd());
    let mut lines = Lines::to(writer.as_fd());
    assert!(!lines.write(writer.as_fd(), b"line\n"));
    drop(reader);
    assert!(!lines.write(writer.as_fd(), b"line\n"));

    let (reader, writer) = UnixStream::pair().unwrap();
    fill(writer.as_fd());
    let mut lines = Lines::to(writer.as_fd());
    assert!(!lines.write(writer.as_fd(), b"line\n"));
    reader.shutdown(Shutdown::Both).unwrap();
    assert!(!lines.write(writer.as_fd(), b"line\n"));

    let full = File::options().write(true).open("/dev/full").unwrap();
    assert!(!Lines::to(full.as_fd()).write(full.as_fd(), b"line\n"));
    let not_for_writing = File::open("/dev/null").unwrap();
    let fd = not_for_writing.as_fd();
    assert!(
        !Lines {
            kind: Kind::Other,
            torn: false
        }
        .write(fd, b"line\n")
    );
}

#[test]
fn a_line_after_one_that_was_cut_off_starts_on_a_line_of_its_own() {
    let (mut reader, writer) = io::pipe().unwrap();
    let mut lines = Lines::to(writer.as_fd());
    let longer_than_the_pipe = vec![b'x'; CAPACITY + PIPE_BUF];
    assert!(!lines.write(writer.as_fd(), &longer_than_the_pipe));
    assert!(!lines.write(writer.as_fd(), b"dropped\n"));
    let mut cut_off = vec![0; CAPACITY];
    reader.read_exact(&mut cut_off).unwrap();
    assert!(lines.write(writer.as_fd(), b"one\n"));
    assert!(lines.write(writer.as_fd(), b"two\n"));
    drop(writer);
    assert_eq!(rest_of(&mut reader), b"\none\ntwo\n");
}

fn write_to(fd: BorrowedFd<'_>, lines: &[&[u8]]) {
    let mut to = Lines::to(fd);
    for line in lines {
        assert!(to.write(fd, line));
    }
}

fn fill(fd: BorrowedFd<'_>) {
    let mut lines = Lines::to(fd);
    while lines.write(fd, &[b'x'; 512]) {}
    while lines.write(fd, b"x") {}
}

fn rest_of(reader: &mut impl io::Read) -> Vec<u8> {
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    rest
}
