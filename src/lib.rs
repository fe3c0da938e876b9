//! Linkerd's CNI plugin, its node agent and its repair controller, as one library.
//!
//! In reading order, from the CNI protocol to the programs:
//!
//! - [`cni`]: the CNI protocol: request, arguments, versions, result, error
//! - [`ports`]: ports and port ranges as annotations and the plugin entry write them
//! - [`rules`]: the redirect rules of one pod, and their text for iptables and nf_tables
//! - [`config`]: the plugin entry, annotations and proxy container, and the redirect they ask for
//! - [`netlink`]: netlink messages, attributes and sockets
//! - [`netns`]: enters network namespaces and makes links in them
//! - [`firewall`]: puts redirect rules into the kernel, and checks that they are there
//! - [`files`]: reads, replaces and removes files of the node atomically
//! - [`kube`]: the client of the API server: kubeconfig, connection, retry, redaction, Events, types
//! - [`conflist`]: the CNI net dir: parses network configs, plans to chain and unchain, saved state
//! - [`record`]: the record of a plugin call: the plugin sends it, the agent logs and counts it
//! - [`plugin`]: what the plugin does for ADD, CHECK, DEL, GC and STATUS
//! - [`agent`]: the node agent: installs, reconciles, verifies and uninstalls
//! - [`repair`]: the repair controller: finds and repairs pods without redirect rules
//! - [`admin`]: the HTTP server for `/live`, `/ready` and `/metrics`
//! - [`metrics`]: registers the metrics of agent and repair controller, and renders their text
//! - [`log`]: log lines that never fail or delay the program
//! - [`backoff`]: delays between retries, with jitter
//! - [`deadline`]: ends polls and threads that take too long
//! - [`quote`]: cuts and cleans text from outside before it is quoted
//! - [`cli`]: command lines of the agent, the repair controller and the probe
//!
//! `config`, `conflist`, `ports`, `rules` and `repair::stranded_pod` decide and return data. The others
//! act. No module imports from one that stands above it, and none in a circle; the test `layout`
//! checks that.

pub mod admin;
pub mod agent;
pub mod backoff;
pub mod cli;
pub mod cni;
pub mod config;
pub mod conflist;
pub mod deadline;
pub mod files;
pub mod firewall;
pub mod kube;
pub mod log;
pub mod metrics;
pub mod netlink;
pub mod netns;
pub mod plugin;
pub mod ports;
pub mod quote;
pub mod record;
pub mod repair;
pub mod rules;
