//! Work that is repeated on a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub struct Repeated<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Repeated<T> {
    /// Calls `work` on `state` again and again on a new thread, with a `pause` after each call.
    pub fn start(pause: Duration, mut state: T, work: impl Fn(&mut T) + Send + 'static) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let must_stop = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !must_stop.load(Ordering::Relaxed) {
                work(&mut state);
                thread::sleep(pause);
            }
            state
        });
        Repeated { stop, thread: Some(thread) }
    }

    /// Waits for the end of the current call, and returns the state. If `work` has panicked, panics
    /// with its message.
    pub fn finish(mut self) -> T {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("only this method takes the thread").join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<T> Drop for Repeated<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
