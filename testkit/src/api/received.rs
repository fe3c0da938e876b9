//! The requests that a fake API server received.

use serde_json::Value;

use super::{Request, Routes, Server};

impl<R: Routes> Server<R> {
    pub fn requests(&self) -> Vec<String> {
        let state = self.state();
        state
            .requests
            .iter()
            .map(|request| format!("{} {}", request.method, request.path))
            .collect()
    }

    pub fn received(&self, is_selected: impl Fn(&Request) -> bool) -> Vec<Request> {
        self.state().requests.iter().filter(|request| is_selected(request)).cloned().collect()
    }

    /// Number of requests with this method whose path contains `path`. An empty `method` stands for
    /// all methods.
    pub fn asked(&self, method: &str, path: &str) -> usize {
        let has_method = |request: &Request| method.is_empty() || request.method == method;
        self.received(|request| has_method(request) && request.path.contains(path)).len()
    }

    /// Returns the paths of the selected requests.
    fn paths(&self, is_selected: impl Fn(&Request) -> bool) -> Vec<String> {
        self.received(is_selected).into_iter().map(|request| request.path).collect()
    }

    /// Returns the paths of the requests with the method DELETE.
    pub fn deleted(&self) -> Vec<String> {
        self.paths(|request| request.method == "DELETE")
    }

    pub fn evictions(&self) -> Vec<String> {
        self.paths(Request::is_eviction)
    }

    pub fn watches(&self) -> Vec<String> {
        self.paths(Request::is_watch)
    }

    pub fn lists(&self) -> usize {
        self.paths(Request::is_list).len()
    }

    pub fn events(&self) -> Vec<Value> {
        self.received(Request::is_event).into_iter().map(|request| request.body).collect()
    }
}
