use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::Command;

use super::*;

/// Waits until the process whose ID is in the file has ended. Fails if the process does not end.
pub fn assert_ends(file: &Path) {
    let id = fs::read_to_string(file).unwrap_or_default();
    let id = id.trim();
    assert!(id.parse::<i32>().is_ok(), "no process ID in {}", file.display());
    let deadline = Deadline::after(Duration::from_secs(20));
    // A zombie counts as ended, because a killed process is one until its new parent reaps it.
    while fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(!deadline.has_passed(), "process {id} is alive");
        thread::sleep(LONGEST_PAUSE);
    }
}

const LONG: Duration = Duration::from_secs(60);

/// `sh -c SCRIPT FILE` as the leader of a process group.
fn shell(script: &str, file: &Path) -> Child {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).arg(file).process_group(0).spawn().unwrap()
}

/// Waits until the shell has written a process ID to the file.
fn await_id(file: &Path) {
    let deadline = Deadline::after(LONG);
    while !fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n')) {
        assert!(!deadline.has_passed(), "nothing was written");
        thread::sleep(FIRST_PAUSE);
    }
}

#[test]
fn wait_stops_at_the_deadline_if_the_child_still_runs() {
    let mut child = shell("exec sleep 60", Path::new(""));
    let ended = wait(&mut child, Deadline::after(REAP_BUDGET)).unwrap();
    kill(&mut child);
    assert_eq!(ended, None, "the child has ended");
}

#[test]
fn child_in_the_group_of_this_process_is_killed_alone() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    kill(&mut child);
    let status = wait(&mut child, Deadline::after(LONG)).unwrap().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
}

#[test]
fn processes_of_the_group_are_killed_even_after_their_leader_exited() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("id");
    for script in [r#"sleep 60 & echo $! >"$0"; wait"#, r#"sleep 60 & echo $! >"$0""#] {
        let mut child = shell(script, &file);
        await_id(&file);
        kill(&mut child);
        assert_ends(&file);
        fs::remove_file(&file).unwrap();
    }
}
