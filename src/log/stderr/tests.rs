use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixStream;

use super::*;

#[test]
fn lines_are_written_completely_to_pipes_sockets_and_files() {
    let long = [vec![b'x'; 3 * PIPE_BUF], b"\n".to_vec()].concat();
    let lines: [&[u8]; 3] = [b"first\n", &long, b"last\n"];
    let all = lines.concat();

    let (mut reader, writer) = io::pipe().unwrap();
    write_to(writer.as_fd(), &lines);
    drop(writer);
    assert_eq!(read_to_end(&mut reader), all);

    let (mut reader, writer) = UnixStream::pair().unwrap();
    write_to(writer.as_fd(), &lines);
    drop(writer);
    assert_eq!(read_to_end(&mut reader), all);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    write_to(File::create(&path).unwrap().as_fd(), &lines);
    assert_eq!(fs::read(&path).unwrap(), all);
}

fn write_to(fd: BorrowedFd<'_>, lines: &[&[u8]]) {
    assert!(lines.iter().all(|line| write_all(fd, line)));
}

fn read_to_end(reader: &mut impl io::Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}
