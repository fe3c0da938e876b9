//! Completes the facts about a pod. Some facts are in other objects, which the agent has to read.

use std::time::Duration;

use crate::agent::identity::USER_AGENT;
use crate::cluster_lookup::complete_facts;
use crate::kube::Deadlines;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::pod::facts::{ObjectFacts, PodFacts};

/// Time-out of each phase of a request for another object. The time-out is short, because the next
/// pods are published only after the request.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the objects on which the facts depend. Reads each object at most once for an update of the
/// watch.
pub struct FactsReader {
    /// Opened only when a pod needs another object, because a connection costs memory.
    connection: Connection,
    reader: Option<ObjectReader>,
}

impl FactsReader {
    pub fn new(source: AccessSource) -> FactsReader {
        let connection = Connection::new(source, USER_AGENT, Deadlines::per_phase(LOOKUP_TIMEOUT));
        FactsReader { connection, reader: None }
    }

    /// Returns all facts about a meshed pod: those of its `own` object, and those of other objects.
    pub fn complete(&mut self, own: &ObjectFacts, namespace: &str) -> Result<PodFacts, String> {
        if !own.needs_objects() {
            return Ok(own.facts.clone());
        }
        let reader = self.reader()?;
        if own.is_control_plane {
            // If `complete_facts` cannot read this Service, it uses default ports. These may be
            // wrong, so the pod must not be published with them. Reading the Service here first
            // makes that an error, and the plugin reads the Service itself.
            reader.api_server_service()?;
        }
        complete_facts(own, namespace, reader).map_err(|error| error.to_string())
    }

    /// Forgets the objects, because they may change before the next update. Closes the connection.
    pub fn end_update(&mut self) {
        self.reader = None;
        self.connection.close();
    }

    fn reader(&mut self) -> Result<&mut ObjectReader, String> {
        match &mut self.reader {
            Some(reader) => Ok(reader),
            missing => {
                let client = self.connection.client().map_err(|error| error.to_string())?;
                Ok(missing.insert(ObjectReader::new(client, ReadFrom::Etcd)))
            }
        }
    }
}
