//! Bugs that the soak itself seeds, to show that it finds them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::load::Break;
use crate::reader;
use crate::world::{World, replace};

pub const TORN: &str = "conflist torn by the soak";

/// Breaks the promise again and again for `span`. The load itself flushes the rules of pods.
pub fn run(seeded: Break, world: &World, span: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < span {
        thread::sleep(Duration::from_secs(5));
        if seeded == Break::Conflist {
            tear(world);
        }
    }
}

/// Cuts the conflist for a moment, as a program does that writes the file in place.
fn tear(world: &World) {
    world.ledger.begin(TORN);
    let Some(path) = reader::active() else {
        return;
    };
    let text = fs::read_to_string(&path).expect("the conflist can be read");
    fs::write(&path, &text[..text.len() / 2]).expect("the conflist can be written");
    thread::sleep(Duration::from_millis(10));
    replace(&path, &text, 0o644);
}
