//! `linkerd cni install`: the chart's objects as a manifest for kubectl, with the flags of Linkerd's
//! `linkerd install-cni`. `scripts/install-cni` prints the same manifest.

use serde_json::{Map, Value, json};

use super::helm;

/// Linkerd's command supports no other namespace.
pub const NAMESPACE: &str = "linkerd-cni";
/// The registry that Linkerd's command takes for "keep the registry of the image".
const DEFAULT_REGISTRY: &str = "cr.l5d.io/linkerd";
/// Environment variable that overrides `--registry`, as in Linkerd's CLI.
pub const REGISTRY_VARIABLE: &str = "LINKERD_DOCKER_REGISTRY";

/// The namespace, with the labels that the agent needs.
const NAMESPACE_OBJECT: &str = "\
apiVersion: v1
kind: Namespace
metadata:
  name: linkerd-cni
  labels:
    linkerd.io/cni-resource: \"true\"
    # The pods here need no proxy.
    config.linkerd.io/admission-webhooks: disabled
    # The agent mounts directories of the node.
    pod-security.kubernetes.io/enforce: privileged
";

/// Kinds of the chart's objects, for the flags with which `kubectl apply --prune` deletes them.
/// kubectl fails for a kind that the cluster lacks, so kinds of CustomResourceDefinitions are missing.
const PRUNED: [&str; 11] = [
    "core/v1/ServiceAccount",
    "core/v1/ConfigMap",
    "core/v1/ResourceQuota",
    "apps/v1/DaemonSet",
    "rbac.authorization.k8s.io/v1/ClusterRole",
    "rbac.authorization.k8s.io/v1/ClusterRoleBinding",
    "rbac.authorization.k8s.io/v1/Role",
    "rbac.authorization.k8s.io/v1/RoleBinding",
    "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy",
    "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding",
    "networking.k8s.io/v1/NetworkPolicy",
];

/// The flags of `linkerd install-cni`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(args_override_self = true)]
pub struct InstallFlags {
    /// User ID of the proxy [default: 2102]
    #[arg(long, value_name = "N")]
    proxy_uid: Option<String>,
    /// Group ID of the proxy
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    proxy_gid: Option<String>,
    /// Inbound port of the proxy [default: 4143]
    #[arg(long, value_name = "N")]
    inbound_port: Option<String>,
    /// Outbound port of the proxy [default: 4140]
    #[arg(long, value_name = "N")]
    outbound_port: Option<String>,
    /// Inbound ports to redirect; may be repeated [default: all]
    #[arg(long, value_name = "N,...")]
    redirect_ports: Vec<String>,
    /// Inbound ports that are not redirected, such as 80,8080-8090; may be repeated
    #[arg(long, value_name = "N[-N],...")]
    skip_inbound_ports: Vec<String>,
    /// Outbound ports that are not redirected; may be repeated
    #[arg(long, value_name = "N[-N],...")]
    skip_outbound_ports: Vec<String>,
    /// The node's directory of network configs [default: /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    dest_cni_net_dir: Option<String>,
    /// The node's directory of CNI plugins [default: /opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    dest_cni_bin_dir: Option<String>,
    /// Name of the image
    #[arg(long, value_name = "NAME")]
    cni_image: Option<String>,
    /// Tag of the image
    #[arg(long, value_name = "TAG")]
    cni_image_version: Option<String>,
    /// Replaces the name of the image up to its last part [env: LINKERD_DOCKER_REGISTRY wins]
    #[arg(long, value_name = "PREFIX")]
    registry: Option<String>,
    /// Log level of plugin and agent [default: info]
    #[arg(long, value_name = "LEVEL")]
    cni_log_level: Option<String>,
    /// Priority class of the agent's pods
    #[arg(long, value_name = "NAME")]
    priority_class_name: Option<String>,
    /// iptables waits for the xtables lock
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    use_wait_flag: Option<bool>,
    /// Any chart value; wins over the flags above and may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Any chart value, as a string
    #[arg(long, value_name = "KEY=VALUE")]
    set_string: Vec<String>,
    /// Any chart value, from a file
    #[arg(long, value_name = "KEY=PATH")]
    set_file: Vec<String>,
    /// File or URL with chart values; may be repeated
    #[arg(long, short = 'f', value_name = "FILE")]
    values: Vec<String>,
    /// Print kubectl's flags for pruning each kind of object in the chart
    #[arg(long)]
    prune_allowlist: bool,
    /// Without effect, as in Linkerd's command.
    #[arg(long, hide = true)]
    control_port: Option<String>,
    /// Without effect, as in Linkerd's command.
    #[arg(long, hide = true)]
    admin_port: Option<String>,
    /// Without effect, as in Linkerd's command.
    #[arg(long, short = 'v', hide = true)]
    linkerd_version: Option<String>,
}

/// What the command prints.
#[derive(Debug, PartialEq, Eq)]
pub struct Printed {
    pub stdout: String,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Why no manifest is printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{flag}: \"{element}\" is neither a port nor a range; use numbers up to 65535, such as 80,8080-8090"
    )]
    Port { flag: &'static str, element: String },
    #[error("{flag}: the range \"{element}\" ends before it starts")]
    Range { flag: &'static str, element: String },
    #[error(transparent)]
    Helm(#[from] helm::Error),
}

/// Renders the manifest. `registry` is the value of [`REGISTRY_VARIABLE`], and `cni_namespace` that of
/// `--cni-namespace`.
///
/// # Errors
/// If a flag is invalid, or helm fails.
pub fn install(
    flags: &InstallFlags,
    registry: Option<String>,
    cni_namespace: &str,
) -> Result<Printed, Error> {
    if flags.prune_allowlist {
        let stdout = PRUNED.iter().map(|kind| format!("--prune-allowlist={kind}\n")).collect();
        return Ok(Printed { stdout, notes: Vec::new() });
    }
    let objects = helm::template(NAMESPACE, &values(flags, registry)?, &helm_flags(flags))?;
    let stdout = format!("{NAMESPACE_OBJECT}{}\n---\n", objects.trim_end_matches('\n'));
    Ok(Printed { stdout, notes: notes(flags, cni_namespace) })
}

/// Names flags without effect, from which a user may expect one.
fn notes(flags: &InstallFlags, cni_namespace: &str) -> Vec<String> {
    let port = |flag: &str, value: &Option<String>, key: &str| {
        let value = value.as_ref()?;
        Some(format!("{flag} has no effect, as in linkerd install-cni; use --set {key}={value}"))
    };
    let namespace = (cni_namespace != NAMESPACE).then(|| {
        format!(
            "--cni-namespace has no effect, as in linkerd install-cni: the namespace is {NAMESPACE}"
        )
    });
    [
        port("--control-port", &flags.control_port, "proxyControlPort"),
        port("--admin-port", &flags.admin_port, "proxyAdminPort"),
        namespace,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the chart values of the flags. Numbers are strings, which the chart accepts.
fn values(flags: &InstallFlags, registry: Option<String>) -> Result<Value, Error> {
    let mut values = Map::new();
    let mut set = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            values.insert(key.to_owned(), json!(value));
        }
    };
    set("proxyUID", flags.proxy_uid.clone());
    set("proxyGID", flags.proxy_gid.clone());
    set("inboundProxyPort", flags.inbound_port.clone());
    set("outboundProxyPort", flags.outbound_port.clone());
    set("portsToRedirect", joined(&flags.redirect_ports));
    set("ignoreInboundPorts", ports("--skip-inbound-ports", &flags.skip_inbound_ports)?);
    set("ignoreOutboundPorts", ports("--skip-outbound-ports", &flags.skip_outbound_ports)?);
    set("destCNINetDir", flags.dest_cni_net_dir.clone());
    set("destCNIBinDir", flags.dest_cni_bin_dir.clone());
    // Linkerd's flag takes any case.
    set("logLevel", flags.cni_log_level.as_ref().map(|level| level.to_lowercase()));
    set("priorityClassName", flags.priority_class_name.clone());
    set("cliVersion", Some(concat!("linkerd/cli v", env!("CARGO_PKG_VERSION")).to_owned()));
    if let Some(wait) = flags.use_wait_flag {
        values.insert("useWaitFlag".to_owned(), json!(wait));
    }
    let image = image(flags, registry);
    if !image.is_empty() {
        values.insert("image".to_owned(), Value::Object(image));
    }
    Ok(Value::Object(values))
}

/// Returns the value `image` of the flags.
fn image(flags: &InstallFlags, registry: Option<String>) -> Map<String, Value> {
    let flag = flags.registry.clone().filter(|registry| registry != DEFAULT_REGISTRY);
    let registry = registry.filter(|registry| !registry.is_empty()).or(flag);
    let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    // Not the chart's `image.registry`, which keeps the path: Linkerd's command keeps only the last
    // part of the name.
    let name = match registry.filter(|registry| !registry.is_empty()) {
        Some(registry) => {
            let name = given(&flags.cni_image).unwrap_or_else(|| "cni-plugin".to_owned());
            let last = name.rsplit('/').next().unwrap_or_default();
            Some(format!("{}/{last}", registry.strip_suffix('/').unwrap_or(&registry)))
        }
        None => given(&flags.cni_image),
    };
    let parts = [("name", name), ("version", given(&flags.cni_image_version))];
    parts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))).collect()
}

/// Returns helm's flags, whose values win over those of the other flags.
fn helm_flags(flags: &InstallFlags) -> Vec<String> {
    let all = [
        ("--values", &flags.values),
        ("--set", &flags.set),
        ("--set-string", &flags.set_string),
        ("--set-file", &flags.set_file),
    ];
    all.iter()
        .flat_map(|(name, given)| given.iter().map(move |value| format!("{name}={value}")))
        .collect()
}

fn joined(lists: &[String]) -> Option<String> {
    let lists: Vec<&str> =
        lists.iter().map(String::as_str).filter(|list| !list.is_empty()).collect();
    (!lists.is_empty()).then(|| lists.join(","))
}

/// Checks lists of ports as Linkerd's command does. The chart accepts more, for existing releases.
fn ports(flag: &'static str, lists: &[String]) -> Result<Option<String>, Error> {
    for list in lists.iter().filter(|list| !list.is_empty()) {
        for element in list.split(',') {
            let invalid = || Error::Port { flag, element: element.to_owned() };
            let (first, last) = element.split_once('-').unwrap_or((element, element));
            let (first, last) = port(first).zip(port(last)).ok_or_else(invalid)?;
            if last < first {
                return Err(Error::Range { flag, element: element.to_owned() });
            }
        }
    }
    Ok(joined(lists))
}

/// Parses a port: digits only.
fn port(text: &str) -> Option<u16> {
    let is_number = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}
