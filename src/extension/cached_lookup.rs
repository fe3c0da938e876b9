//! Reads the objects, besides the pod, that the plugin would look up. Reads each of them once.

use std::collections::BTreeMap;

use super::requests::{Api, Error, get_object};
use crate::cluster_lookup::ClusterLookup;
use crate::cni::Error as CniError;
use crate::failure::Failure;
use crate::kube::object_reader::{API_SERVICE, namespace_path};
use crate::kube::types::{Namespace, Service};
use crate::pod::annotation::Annotations;

pub struct CachedLookup<'a> {
    api: &'a dyn Api,
    namespaces: BTreeMap<String, Result<Annotations, CniError>>,
    service: Option<Result<Service, CniError>>,
}

impl<'a> CachedLookup<'a> {
    pub fn new(api: &'a dyn Api) -> Self {
        CachedLookup { api, namespaces: BTreeMap::new(), service: None }
    }
}

impl ClusterLookup for CachedLookup<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, CniError> {
        if let Some(annotations) = self.namespaces.get(name) {
            return annotations.clone();
        }
        let annotations = match get_object::<Namespace>(self.api, &namespace_path(name)) {
            Ok(namespace) => Ok(namespace.metadata.annotations),
            Err(error) => Err(read_error(&format!("namespace {name}"), &error)),
        };
        self.namespaces.insert(name.to_owned(), annotations.clone());
        annotations
    }

    fn api_service(&mut self) -> Result<Service, CniError> {
        if let Some(service) = &self.service {
            return service.clone();
        }
        let service = match get_object(self.api, API_SERVICE) {
            Ok(service) => Ok(service),
            Err(error) => Err(read_error("Service default/kubernetes", &error)),
        };
        self.service = Some(service.clone());
        service
    }
}

/// Returns the error of a failed request. The error says that the user cannot read the object,
/// because the plugin has other rights.
fn read_error(what: &str, error: &Error) -> CniError {
    CniError::new(Failure::ApiError, format!("you cannot read {what}: {error}"))
}
