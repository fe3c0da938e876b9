//! Linkerd's CNI plugin, its node agent and its repair controller, as one library.
//!
//! The plugin's story, in reading order: [`cni`] (the protocol), [`plugin`] (what each
//! command does), [`config`] (what is wanted for this pod), [`ports`], [`rules`] (which
//! rules that means), [`firewall`] and [`netns`] (putting them into the pod's
//! namespace). [`kube`] asks the API server. [`install`] is the agent, [`repair`] the
//! repair controller; [`admin`] is their `/live`, `/ready` and `/metrics`, [`command`]
//! their command lines. `regular` opens files without waiting for pipes in their place,
//! [`quote`] quotes what others wrote.
//!
//! What decides is pure and returns data: `config`, `ports`, `rules`,
//! `agent::conflist`, `repair::verdict`. What acts is named for it: `firewall`,
//! `netns`, `kube`, `agent::files`, `agent::watch`.

pub mod admin;
pub mod agent;
pub mod cli;
pub mod cni;
pub mod config;
pub mod conflist;
pub mod files;
pub mod firewall;
pub mod kube;
pub mod log;
pub mod netlink;
pub mod netns;
pub mod plugin;
pub mod ports;
pub mod quote;
pub mod repair;
pub mod rules;
