use std::collections::BTreeMap;

use serde::Deserialize;
use testkit::table;

use super::*;

fn read(vars: &[(&str, &str)]) -> Result<Settings, Error> {
    let vars: BTreeMap<&str, &str> = vars.iter().copied().collect();
    Settings::read(|name| vars.get(name).map(|value| (*value).to_owned()))
}

#[test]
fn an_empty_environment_gives_upstreams_defaults() {
    for vars in [&[][..], &[("DEST_CNI_NET_DIR", ""), ("KUBE_CA_FILE", "")]] {
        let settings = read(vars).unwrap();
        assert_eq!(settings.node.bin_dir, Path::new("/host/opt/cni/bin"));
        assert_eq!(settings.node.net_dir, Path::new("/host/etc/cni/net.d"));
        assert_eq!(settings.node.image_bin_dir, Path::new("/opt/cni/bin"));
        assert_eq!(settings.node.kubeconfig_on_host, "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig");
        assert_eq!(settings.ca_file, None);
        assert_eq!(settings.admin_address, None);
        assert_eq!(settings.node.run_dir, None);
        assert_eq!(settings.resync, Duration::from_secs(30));
        assert_eq!(settings.termination_grace, Duration::from_secs(30));
        assert_eq!(settings.log_level, LevelFilter::INFO);
    }
}

#[test]
fn the_template_in_the_environment_wins_over_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let in_file = r#"{"type":"linkerd-cni","linkerd":{}}"#;
    fs::write(file.path(), in_file).unwrap();
    let file_setting = ("CNI_NETWORK_CONFIG_FILE", file.path().to_str().unwrap());
    let in_environment = r#"{"type":"linkerd-cni"}"#;
    for (template, expected) in [(in_environment, in_environment), ("", in_file)] {
        let settings = read(&[("CNI_NETWORK_CONFIG", template), file_setting]).unwrap();
        assert_eq!(settings.plugin_entry().unwrap().text(), expected);
    }
}

#[test]
fn an_invalid_setting_is_an_error_with_its_name_and_value() {
    for (name, values) in table::rows::<Vec<String>>(include_str!("tests/invalid.yaml")) {
        for value in values {
            let error = read(&[(&name, &value)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }
    for host in ["10.96.0.1", "fd00::1", "[fd00::1]", "localhost", "api.x-y.example"] {
        let settings = read(&[("KUBERNETES_SERVICE_HOST", host)]).unwrap();
        assert_eq!(settings.api_host.as_deref(), Some(host));
    }
    let settings = read(&[("KUBERNETES_SERVICE_PORT", "65535")]).unwrap();
    assert_eq!(settings.api_port.as_deref(), Some("65535"));
}

#[test]
fn an_empty_startup_taint_setting_means_no_taint() {
    for (key, startup_taint) in [("", None), ("a/b", Some("a/b".to_owned()))] {
        let found = read(&[("LINKERD_CNI_STARTUP_TAINT", key)]);
        assert_eq!(found.map(|settings| settings.startup_taint), Ok(startup_taint));
    }
}

#[test]
fn the_log_level_is_parsed() {
    for (text, level) in [("debug", LevelFilter::DEBUG), ("warning", LevelFilter::WARN)] {
        let settings = read(&[("LINKERD_CNI_LOG_LEVEL", text)]).unwrap();
        assert_eq!(settings.log_level, level);
    }
}

#[test]
fn paths_are_joined_as_by_gos_path_join() {
    for (dir, path, expected) in [
        ("/host", "/etc/cni/net.d/", "/host/etc/cni/net.d"),
        ("/host/", "etc", "/host/etc"),
        ("/", "/opt/cni/bin", "/opt/cni/bin"),
        ("/a/b", "../c/./d", "/a/c/d"),
        ("/", "../x", "/x"),
        ("etc", "linkerd-kubeconfig.json", "etc/linkerd-kubeconfig.json"),
    ] {
        assert_eq!(join(dir, path), Path::new(expected), "{dir} + {path}");
    }
    for name in ["/kc", "kc/", "//kc"] {
        let settings =
            read(&[("KUBECONFIG_FILE_NAME", name), ("DEST_CNI_NET_DIR", "/config")]).unwrap();
        assert_eq!(settings.node.kubeconfig(), Path::new("/host/config/kc"));
        assert_eq!(settings.node.kubeconfig_on_host, "/config/kc");
    }
}

#[test]
fn settings_select_the_chain_mode_or_are_rejected() {
    for (name, row) in table::rows_of::<ModeRow>(MODES, "modes") {
        let mode = read(&pairs(&row.settings)).unwrap().node.mode;
        assert_eq!(format!("{mode:?}"), row.mode, "{name}");
    }
    for (name, row) in table::rows_of::<ModeErrorRow>(MODES, "errors") {
        let error = read(&pairs(&row.settings)).unwrap_err().to_string();
        assert!(error.contains(&row.error), "{name}: {error}");
    }
}

const MODES: &str = include_str!("tests/modes.yaml");

/// A row of `modes` in `modes.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModeRow {
    settings: BTreeMap<String, String>,
    mode: String,
}

/// A row of `errors` in `modes.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModeErrorRow {
    settings: BTreeMap<String, String>,
    error: String,
}

fn pairs(settings: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
