use std::collections::BTreeMap;

use serde_json::Value;

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
    let file = ("CNI_NETWORK_CONFIG_FILE", file.path().to_str().unwrap());
    let in_environment = r#"{"type":"linkerd-cni"}"#;
    for (text, wanted) in [(in_environment, in_environment), ("", in_file)] {
        let settings = read(&[("CNI_NETWORK_CONFIG", text), file]).unwrap();
        assert_eq!(settings.plugin_entry().unwrap().text(), wanted);
    }
}

#[test]
fn an_invalid_setting_is_an_error_with_its_name_and_value() {
    let invalid = testkit::chart::yaml(include_str!("tests/invalid.yaml"));
    for (name, values) in invalid.as_object().unwrap() {
        for value in values.as_array().unwrap().iter().filter_map(Value::as_str) {
            let error = read(&[(name, value)]).unwrap_err().to_string();
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
fn an_empty_key_of_the_startup_taint_is_none() {
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
fn paths_are_joined_as_by_gos_path_join_and_slashes_around_the_kubeconfig_name_are_ignored() {
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
fn settings_select_the_mode_of_chaining_and_an_invalid_conf_name_is_rejected_with_the_reason() {
    let cases = testkit::chart::yaml(include_str!("tests/modes.yaml"));
    for (name, case) in cases["modes"].as_object().unwrap() {
        let mode = read(&variables(case)).unwrap().node.mode;
        assert_eq!(format!("{mode:?}"), case["mode"].as_str().unwrap(), "{name}");
    }
    for (name, case) in cases["errors"].as_object().unwrap() {
        let error = read(&variables(case)).unwrap_err().to_string();
        assert!(error.contains(case["error"].as_str().unwrap()), "{name}: {error}");
    }
}

/// The environment variables of a case.
fn variables(case: &Value) -> Vec<(&str, &str)> {
    let settings = case["settings"].as_object().unwrap();
    settings.iter().map(|(name, value)| (&**name, value.as_str().unwrap())).collect()
}
