//! `linkerd cni`, the command for administrators: an extension of Linkerd's CLI. It runs on the
//! administrator's machine and reaches the cluster through `kubectl`.
//!
//! - [`api`], [`kubectl`]: requests to the API server
//! - [`objects`]: the fields of API objects that the commands read
//! - [`agents`]: the agents' pods, and what each agent reports
//! - [`facts`]: everything that the checks of an installed chart look at
//! - [`checks`]: facts to check results
//! - [`report`]: check results as table, short text or JSON, like `linkerd check`
//! - [`nodes`]: the table of `linkerd cni nodes`
//! - [`compare`]: compares the redirect of all meshed pods with the one that this plugin would install
//! - [`explain`]: what the plugin decides for one pod, and why
//! - [`bypass`]: the paths on which traffic of meshed pods bypasses the proxy

pub mod agents;
pub mod api;
pub mod bypass;
pub mod checks;
pub mod compare;
pub mod explain;
pub mod facts;
#[cfg(test)]
pub mod fake;
pub mod kubectl;
pub mod nodes;
pub mod objects;
pub mod report;
