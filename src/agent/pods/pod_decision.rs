//! Makes the plugin's decision on a pod, for which the agent may have to read other objects.

use std::time::Duration;

use super::node_pod::FACTS_LIMIT;
use crate::agent::identity::USER_AGENT;
use crate::cluster_lookup::complete_facts;
use crate::kube::Deadlines;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::pod::Decision;
use crate::pod::facts::{ObjectFacts, PodFacts};

/// Time-out of each phase of a request for another object. The next pods wait behind it.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the objects on which decisions depend, each at most once in an update of the watch.
pub struct DecisionMaker {
    /// Opened only when a pod needs another object: a connection costs memory.
    connection: Connection,
    reader: Option<ObjectReader>,
}

impl DecisionMaker {
    pub fn new(source: AccessSource) -> DecisionMaker {
        let connection = Connection::new(source, USER_AGENT, Deadlines::per_phase(LOOKUP_TIMEOUT));
        DecisionMaker { connection, reader: None }
    }

    /// Returns the plugin's decision on a pod, from its own `facts` and other objects. The bypass
    /// metric needs the own facts, too.
    pub fn decide(
        &mut self,
        facts: &[u8],
        namespace: &str,
    ) -> Result<Decision<(ObjectFacts, PodFacts)>, String> {
        if facts.is_empty() {
            let why = "its annotations and containers need more than";
            return Err(format!("{why} {FACTS_LIMIT} bytes"));
        }
        let own = serde_json::from_slice(facts).map_err(|error| error.to_string())?;
        let own: ObjectFacts = match own {
            Decision::Redirect(own) => own,
            Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
        };
        if !own.needs_objects() {
            let facts = own.facts.clone();
            return Ok(Decision::Redirect((own, facts)));
        }
        let reader = self.reader()?;
        if own.is_control_plane {
            // Without the Service, default ports would apply. The plugin then reads the Service.
            reader.api_server_service()?;
        }
        let facts = complete_facts(&own, namespace, reader).map_err(|error| error.to_string())?;
        Ok(Decision::Redirect((own, facts)))
    }

    /// Forgets the objects, which may change, and closes the connection.
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
