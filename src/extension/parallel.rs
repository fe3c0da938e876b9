//! Runs work on several threads.

use std::panic;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::vec;

/// Number of threads, each of which works on one item at a time.
const THREADS: usize = 16;

/// Calls `work` for each of `items`, several at a time. Returns the results in any order.
pub fn in_parallel<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let thread_count = THREADS.min(items.len());
    let queue = Mutex::new(items.into_iter());
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..thread_count {
            threads.push(scope.spawn(|| work_until_empty(&queue, &work)));
        }
        let mut results = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(thread_results) => results.extend(thread_results),
                Err(payload) => panic::resume_unwind(payload),
            }
        }
        results
    })
}

/// Calls `work` for items of `queue` until the queue is empty. Returns the results.
fn work_until_empty<T, R>(queue: &Mutex<vec::IntoIter<T>>, work: &impl Fn(T) -> R) -> Vec<R> {
    let mut results = Vec::new();
    while let Some(item) = next_item(queue) {
        results.push(work(item));
    }
    results
}

/// Takes the next item. Unlocks the queue before the caller works on the item, so that the other
/// threads do not wait for that.
fn next_item<T>(queue: &Mutex<vec::IntoIter<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).next()
}
