//! The watches of a fake API server.

use std::io;
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use super::{Routes, Server, State};
use crate::server::Connection;
use crate::until::until;

#[derive(Clone)]
pub(super) enum Event {
    Line(String),
    /// The regular end of a watch, as after `timeoutSeconds`.
    End,
    /// The end of the connection in the middle of an event.
    Cut,
}

impl<R: Routes> Server<R> {
    pub fn bookmark(&self) {
        self.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
    }

    pub fn bookmark_now(&self) {
        self.send_now("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
    }

    pub fn modify(&self, pod: &Value) {
        self.send("MODIFIED", pod);
    }

    /// Waits until there is a watch, and sends an event to all watches.
    pub fn send(&self, kind: &str, object: &Value) {
        until("somebody watches", || !self.state().watchers.is_empty());
        self.send_now(kind, object);
    }

    /// Sends an event to the watches that are open now, if there are any.
    pub fn send_now(&self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.state().watchers.retain(|watcher| watcher.send(Event::Line(line.clone())).is_ok());
    }

    /// Ends all watches, as the API server does after `timeoutSeconds`.
    pub fn end_watches(&self) {
        self.close_watches(&Event::End);
    }

    /// Cuts all watches in the middle of an event, as a proxy on the way may do.
    pub fn break_watches(&self) {
        self.close_watches(&Event::Cut);
    }

    fn close_watches(&self, event: &Event) {
        for watcher in self.state().watchers.drain(..) {
            let _ = watcher.send(event.clone());
        }
    }
}

/// Begins the response to a watch. Returns the events that it has to send.
pub(super) fn open<R>(
    state: &mut State<R>,
    connection: &mut Connection,
) -> io::Result<Receiver<Event>> {
    connection.send_chunked_head()?;
    let (sender, events) = channel();
    state.watchers.push(sender);
    Ok(events)
}

/// Sends the events until the watch ends.
pub(super) fn send(events: &Receiver<Event>, connection: &mut Connection) -> io::Result<()> {
    for event in events {
        match event {
            Event::Line(line) => {
                connection.send(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())?;
            }
            Event::End => connection.send(b"0\r\n\r\n")?,
            Event::Cut => {
                connection.send(b"9\r\n{\"type\":\r\n")?;
                connection.close();
                return Ok(());
            }
        }
    }
    Ok(())
}
