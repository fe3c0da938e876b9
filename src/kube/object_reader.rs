//! Reads the objects besides a pod on which the pod's redirect may depend, each at most once.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use super::Client;
use super::types::{Namespace, Service};

/// Path of the API server's Service.
pub const API_SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";

pub fn namespace_path(name: &str) -> String {
    format!("/api/v1/namespaces/{name}")
}

/// Where the API server reads an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// The API server's cache, which may be stale. Audits read from the cache, because they read
    /// many objects. A stale object causes no repair, because the worker inspects each pod again
    /// with [`ReadFrom::Etcd`] before the repair.
    Cache,
    Etcd,
}

/// Reads each API object once, and returns the same result for later calls. Errors are kept, too,
/// because 100 pods of one namespace must not cause 100 requests that the API server rejects.
pub struct ObjectReader {
    client: Client,
    read_from: ReadFrom,
    namespaces: BTreeMap<String, Result<BTreeMap<String, String>, String>>,
    api_service: Option<Result<Service, String>>,
}

impl ObjectReader {
    pub fn new(client: Client, read_from: ReadFrom) -> Self {
        ObjectReader { client, read_from, namespaces: BTreeMap::new(), api_service: None }
    }

    pub fn namespace_annotations(
        &mut self,
        name: &str,
    ) -> Result<BTreeMap<String, String>, String> {
        if let Some(result) = self.namespaces.get(name) {
            return result.clone();
        }
        let annotations = self.read_annotations(name);
        self.namespaces.insert(name.to_owned(), annotations.clone());
        annotations
    }

    fn read_annotations(&self, name: &str) -> Result<BTreeMap<String, String>, String> {
        let namespace: Namespace = self.get(&namespace_path(name))?;
        if namespace.metadata.name != name {
            return Err(format!("another object instead of namespace {name}"));
        }
        let mut annotations = namespace.metadata.annotations;
        // The reader keeps all namespaces in memory. Each may have 256 KiB of other annotations, so
        // these are dropped.
        annotations.retain(|key, _| key.starts_with("config.linkerd.io/"));
        Ok(annotations)
    }

    pub fn api_server_service(&mut self) -> Result<Service, String> {
        if let Some(result) = &self.api_service {
            return result.clone();
        }
        let service = self.get(API_SERVICE);
        self.api_service = Some(service.clone());
        service
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let path = match self.read_from {
            ReadFrom::Cache => format!("{path}?resourceVersion=0"),
            ReadFrom::Etcd => path.to_owned(),
        };
        self.client.get(&path).map_err(|error| error.to_string())
    }
}
