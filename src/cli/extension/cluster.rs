//! The flags that select cluster and user, which all commands of `linkerd cni` have.

use clap::{ArgAction, Args};

use crate::extension::agents::DAEMONSET;

/// Default namespace of the control plane.
const LINKERD_NAMESPACE: &str = "linkerd";

#[derive(Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterFlags {
    /// Namespace of the DaemonSet linkerd-cni. If it has none, the only other one is used
    #[arg(long, global = true, default_value = DAEMONSET)]
    pub cni_namespace: String,
    /// Path of the kubeconfig file
    #[arg(long, global = true)]
    kubeconfig: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, global = true)]
    context: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true)]
    user: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long = "as-group", global = true)]
    groups: Vec<String>,
    /// Namespace of the control plane
    #[arg(long, short = 'L', global = true, env = "LINKERD_NAMESPACE", hide_env_values = true)]
    #[arg(default_value = LINKERD_NAMESPACE)]
    linkerd_namespace: String,
    // `linkerd check` passes these two to every extension. Accepted without effect.
    #[arg(long, global = true, hide = true)]
    api_addr: Option<String>,
    #[arg(long, global = true, hide = true, action = ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    verbose: Option<String>,
}

impl ClusterFlags {
    /// Returns the namespace of the control plane. As in Linkerd's CLI, an empty variable is not
    /// set.
    pub fn linkerd_namespace(&self) -> &str {
        match self.linkerd_namespace.as_str() {
            "" => LINKERD_NAMESPACE,
            namespace => namespace,
        }
    }

    /// Returns kubectl's flags for the same cluster and user.
    pub fn kubectl_flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        for (name, value) in
            [("kubeconfig", &self.kubeconfig), ("context", &self.context), ("as", &self.user)]
        {
            if let Some(value) = value
                && !value.is_empty()
            {
                flags.push(format!("--{name}={value}"));
            }
        }
        for group in self.groups.iter().flat_map(|value| group_names(value)) {
            flags.push(format!("--as-group={group}"));
        }
        flags
    }
}

/// Returns the groups in a value of `--as-group`. `linkerd check` passes all groups as one value,
/// such as `[a,b]` or `[]`.
fn group_names(value: &str) -> impl Iterator<Item = &str> {
    let list = value.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
    list.unwrap_or(value).split(',').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestFlags {
        #[command(flatten)]
        cluster: ClusterFlags,
    }

    #[test]
    fn impersonation_flags_are_passed_to_kubectl() {
        let line = "linkerd-cni --as=jane --as-group=[a,b] --as-group c";
        let flags = TestFlags::try_parse_from(line.split_whitespace()).unwrap();
        let wanted = ["--as=jane", "--as-group=a", "--as-group=b", "--as-group=c"];
        assert_eq!(flags.cluster.kubectl_flags(), wanted);
    }

    #[test]
    fn empty_control_plane_namespace_selects_the_default() {
        for (value, namespace) in [("", "linkerd"), ("mesh", "mesh")] {
            let flags = TestFlags::try_parse_from(["x", "-L", value]).unwrap();
            assert_eq!(flags.cluster.linkerd_namespace(), namespace);
        }
    }
}
