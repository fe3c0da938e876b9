//! Network configs of Multus' daemon, which name the primary CNI's conflist.
//!
//! The daemon reads that conflist at each call, so the plugin entry belongs there. The daemon
//! removes its own `.conf` when it stops, and the runtime then loads the primary CNI's conflist. A
//! conflist made from that `.conf` would stay, and no pod could start without the daemon.

use serde::Deserialize;

use crate::conflist::net_dir::{ConfigFile, ConfigKind};

/// Members of a `.conf` of Multus.
#[derive(Deserialize)]
struct MultusConf {
    #[serde(rename = "type")]
    plugin: String,
    /// The delegate: the path of a network config, or the name of a network or an object.
    #[serde(rename = "clusterNetwork")]
    cluster_network: String,
}

/// Returns the conflist among `files` that Multus reads at each call, if `file` is the `.conf` of
/// Multus' daemon and names that conflist by its path.
///
/// Multus may see the CNI net dir at another path than the runtime, so only the file name counts.
pub(super) fn delegate<'f>(file: &ConfigFile, files: &[&'f ConfigFile]) -> Option<&'f ConfigFile> {
    if file.kind != ConfigKind::Conf {
        return None;
    }
    let conf: MultusConf = serde_json::from_str(&file.content.as_ref().ok()?.text).ok()?;
    let (_, name) = conf.cluster_network.rsplit_once('/')?;
    if !matches!(conf.plugin.as_str(), "multus" | "multus-shim") {
        return None;
    }
    let is_delegate =
        |other: &&&ConfigFile| other.name == name && other.kind == ConfigKind::Conflist;
    files.iter().find(is_delegate).copied()
}

#[cfg(test)]
mod tests {
    use crate::conflist::chain_mode::ChainMode;
    use crate::conflist::plan::tests::{CONF, LIST, entry, found, with_entry};
    use crate::conflist::plan::{called, chain, is_chained};
    use crate::conflist::saved_state::SavedState;

    /// The file that Multus' daemon writes.
    fn daemon_conf(cluster_network: &str) -> String {
        format!(
            r#"{{"capabilities":{{"portMappings":true}},"cniVersion":"0.3.1","name":"multus-cni-network",
                "clusterNetwork":"{cluster_network}","type":"multus-shim"}}"#
        )
    }

    #[test]
    fn the_conf_of_multus_daemon_stays_and_the_conflist_that_it_names_is_chained() {
        let daemon = daemon_conf("/host/etc/cni/net.d/10-net.conflist");
        let chained = with_entry(LIST);
        for (list, writes, ready) in
            [(LIST, &["10-net.conflist"][..], false), (&chained, &[], true)]
        {
            let found = found(&[("00-multus.conf", &daemon), ("10-net.conflist", list)]);
            let plan = chain(&ChainMode::Every, &found, &entry(), &SavedState::default());
            let targets: Vec<&str> = plan.steps.iter().map(|step| step.target()).collect();
            assert_eq!(targets, writes);
            assert_eq!(plan.not_chained.is_none(), ready, "{:?}", plan.not_chained);
            assert_eq!(is_chained(&ChainMode::Every, &found), ready);
            assert_eq!(called(&found).map(|file| &*file.name), Some("10-net.conflist"));
        }
    }

    #[test]
    fn other_configs_of_multus_are_converted_as_any_conf() {
        let copy = format!(r#"{{"name":"n","type":"multus","delegates":[{LIST}]}}"#);
        for conf in [
            copy,
            // The name of a network, a missing file, and another plugin.
            daemon_conf("net"),
            daemon_conf("/run/net.d/10-other.conflist"),
            daemon_conf("/etc/cni/net.d/10-net.conflist").replace("multus-shim", "bridge"),
        ] {
            let found = found(&[("00-multus.conf", &conf), ("10-net.conflist", LIST)]);
            let plan = chain(&ChainMode::Every, &found, &entry(), &SavedState::default());
            let targets: Vec<&str> = plan.steps.iter().map(|step| step.target()).collect();
            assert_eq!(targets, ["00-multus.conflist", "10-net.conflist"], "{conf}");
            assert_eq!(called(&found).map(|file| &*file.name), Some("00-multus.conf"));
        }
        let found = found(&[("10-net.conf", CONF)]);
        assert_eq!(called(&found).map(|file| &*file.name), Some("10-net.conf"));
    }
}
