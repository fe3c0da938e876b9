//! Linkerd's CNI plugin, its node agent and its repair controller, as one library.
//!
//! From the tools to the programs; each module imports only from modules above it:
//!
//! - [`backoff`]: delays between retries, with jitter
//! - [`deadline`]: stops waiting for polls and threads that take too long
//! - [`child`]: waits for a child process until a deadline; kills it with its process group
//! - [`quote`]: cuts and cleans text from outside before it is quoted
//! - [`failure`]: code, name, cause and remedy of each failure of the plugin
//! - [`log`]: writes log lines to stderr without blocking; drops a line that cannot be written at
//!   once
//! - [`metrics`]: registers the metrics of agent and repair controller, and renders their text
//! - [`admin`]: the HTTP server for `/live`, `/ready` and `/metrics`
//! - [`files`]: reads, replaces and removes files of the node atomically
//! - [`kube`]: the client of the API server: kubeconfig, connection, retry, redaction, Events,
//!   types; the watch of a node's pods, and the scope of the DaemonSet
//! - [`netlink`]: netlink messages, attributes and sockets
//! - [`netns`]: enters network namespaces and makes links in them
//! - [`cni`]: the CNI protocol: request, arguments, versions, result, error
//! - [`redirect`]: a pod's redirect (ports, subnets, address families), and the rules as data
//! - [`pod`]: facts about a pod from its name, annotations and containers
//! - [`cluster_lookup`]: reads the objects besides a pod that complete the facts for its redirect
//! - [`pod_copy`]: the node's copy of its pods: the agent writes it, the plugin reads it
//! - [`firewall`]: puts redirect rules into the kernel, and checks that they are there
//! - [`config`]: the plugin entry, and a pod's redirect from the entry and the facts about the pod
//! - [`verdict`]: what the plugin does with a pod: skip, redirect or refuse; the paths around the
//!   proxy of a redirected pod
//! - [`record`]: the record of a plugin call: the plugin sends it, the agent logs and counts it
//! - [`plugin`]: what the plugin does for ADD, CHECK, DEL, GC and STATUS
//! - [`conflist`]: the CNI net dir: parses network configs, plans to chain and unchain, saved state
//! - [`node`]: the agent's files on the node: installs and uninstalls them
//! - [`agent`]: the node agent: installs, reconciles, verifies and uninstalls
//! - [`repair`]: the repair controller: finds and repairs pods without redirect rules
//! - [`extension`]: `linkerd cni`, the administrator's command: checks, one pod explained, paths
//!   around the proxy
//! - [`probe`]: verifies an installation: what `helm test` runs
//! - [`cli`]: command lines of the agent, the repair controller, the probe that `helm test` runs,
//!   and `linkerd cni`
//!
//! To follow an ADD, start with [`plugin`]. Agent and repair controller do not import from each
//! other. The test `layout` checks the order of the map. Modules whose documentation has "Pure." at
//! the end of its first paragraph do no I/O. In `conflist`, only `net_dir` and `saved_state` access
//! files.

/// Version of the programs, without `v`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub mod backoff;
pub mod child;
pub mod cluster_lookup;
pub mod cni;
pub mod config;
pub mod deadline;
pub mod extension;
pub mod failure;
pub mod files;
pub mod kube;
pub mod pod;
pub mod quote;
pub mod record;
pub mod redirect;
pub mod verdict;

cfg_if::cfg_if! {
    if #[cfg(target_os = "linux")] {
        pub mod admin;
        pub mod agent;
        pub mod cli;
        pub mod conflist;
        pub mod firewall;
        pub mod log;
        pub mod metrics;
        pub mod netlink;
        pub mod netns;
        pub mod node;
        pub mod plugin;
        pub mod pod_copy;
        pub mod probe;
        pub mod repair;
    } else {
        // On systems other than Linux, only `linkerd cni` is built. These are the parts of three
        // modules that it needs.
        pub mod agent {
            pub mod status_body;
            pub mod subject;
        }
        pub mod cli {
            pub mod extension;
        }
        pub mod repair {
            pub mod find {
                pub mod stranded;
            }
        }
    }
}
