//! The commands in the pages, and how it is shown that each works. Text files and tables only.

use std::fs;
use std::path::PathBuf;

use crate::repository;

/// How it is shown that a command of a page works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The chart's test `documented` renders the chart with the command's values, and checks its flags.
    Rendered,
    /// The cluster test `documented` runs the command of the page, with names instead of its placeholders.
    OnCluster,
    /// This test, or this step of `scripts/test`, runs the command or what it does.
    By(&'static str),
    /// The command cannot run in a test, for this reason.
    Not(&'static str),
}

use Shown::{By, Not, OnCluster, Rendered};

const NO_LINKERD: &str = "no test builds Linkerd's CLI, and its images cannot be pulled here";
const NO_DOCKER: &str = "no container engine here: scripts/image builds the image";
const THIS_RUN: &str = "runs the tests, this one included";
const TAKES_LONG: &str =
    "takes minutes to hours; a workflow or a step of scripts/test runs a short form";
const NO_CILIUM: &str = "the cluster of the tests has no Cilium";
const NO_CRD: &str = "the cluster of the tests has no Prometheus operator";

const PUBLISHED: &str =
    "a_release_is_published_in_spite_of_failures_and_verified_with_the_commands_of_the_page";

/// Commands by their beginning. The longest beginning that matches counts.
const COMMANDS: &[(&str, Shown)] = &[
    ("helm install linkerd-cni charts/linkerd2-cni ", Rendered),
    ("helm install linkerd-cni linkerd2-cni-", By("a_release_is_installed_from_its_folder")),
    ("helm upgrade linkerd-cni charts/linkerd2-cni ", Rendered),
    ("helm template linkerd-cni . ", Rendered),
    ("helm template linkerd-cni charts/linkerd2-cni ", Rendered),
    ("kubectl wait ", OnCluster),
    ("time kubectl get ", OnCluster),
    // On a node. That of the cluster tests is the machine of the test.
    ("date -u ", OnCluster),
    ("df -h /opt/cni/bin ", OnCluster),
    ("ls /etc/cni/net.d", OnCluster),
    ("findmnt -T /opt/cni/bin ", OnCluster),
    ("for file in /etc/cni/net.d/", OnCluster),
    ("grep -l linkerd-cni /etc/cni/net.d/", OnCluster),
    ("grep linkerd-cni /proc/mounts", OnCluster),
    ("grep ' ro[ ,]' /proc/mounts", OnCluster),
    ("grep server /etc/cni/net.d/", OnCluster),
    ("sed -n 's/.*\"certificate-authority-data\"", OnCluster),
    ("curl -k https://ADDRESS:443/readyz", Not("the address is that in the error text")),
    (
        "for netns in /var/run/netns/",
        By("linkerd_cni_reports_a_healthy_cluster_explains_a_pod_and_names_faults"),
    ),
    (
        "nsenter --net=NETNS nft ",
        By("linkerd_cni_reports_a_healthy_cluster_explains_a_pod_and_names_faults"),
    ),
    (
        "nsenter --net=NETNS iptables-legacy ",
        By("iptables_legacy_rules_are_reported_and_not_changed"),
    ),
    ("journalctl ", Not("the tests' kubelet and runtimes do not log to the journal")),
    ("grep CapEff ", Not("container runtimes of other clusters run on the machine")),
    ("ausearch ", Not("the kernel has no SELinux")),
    ("crictl ", Not("the tests do not install crictl")),
    ("scripts/benchmarks", Not(TAKES_LONG)),
    ("scripts/soak", Not(TAKES_LONG)),
    ("helm test linkerd-cni ", OnCluster),
    ("helm history linkerd-cni ", OnCluster),
    ("helm get values linkerd-cni ", OnCluster),
    (
        "helm rollback linkerd-cni REVISION ",
        By("an_upgrade_from_upstreams_chart_and_the_way_back_leave_no_pod_without_redirection"),
    ),
    (
        "helm uninstall linkerd-cni ",
        By("install_upgrade_and_uninstall_redirect_pods_and_restore_the_node"),
    ),
    ("helm package charts/linkerd2-cni", By("the_package_contains_no_development_files")),
    ("helm install linkerd-crds ", Not(NO_LINKERD)),
    ("helm install linkerd-control-plane ", Not(NO_LINKERD)),
    ("kubectl create secret docker-registry SECRET ", Not("the reader's credential of a registry")),
    ("kubectl create namespace linkerd-cni", By("documented_commands_succeed_on_a_cluster")),
    ("kubectl label namespace linkerd-cni ", By("documented_commands_succeed_on_a_cluster")),
    (
        "kubectl label --overwrite namespace linkerd-cni ",
        By("linkerd_cni_reports_a_healthy_cluster_explains_a_pod_and_names_faults"),
    ),
    ("kubectl get ", OnCluster),
    ("kubectl get podmonitor ", Not(NO_CRD)),
    ("kubectl get configmap cilium-config ", Not(NO_CILIUM)),
    ("helm upgrade cilium ", Not(NO_CILIUM)),
    ("kubectl rollout restart -n kube-system daemonset/cilium ", Not(NO_CILIUM)),
    (
        "kubectl rollout restart -n linkerd-cni ",
        By("meshed_pods_start_redirected_while_the_agent_is_replaced_or_killed"),
    ),
    ("kubectl patch deployment DEPLOYMENT ", Not("changes a workload of the reader")),
    ("kubectl describe ", OnCluster),
    ("kubectl logs ", OnCluster),
    (
        "kubectl logs -n linkerd-cni test-linkerd-cni",
        Not("these pods exist only after a failed helm test"),
    ),
    (
        "kubectl logs -n linkerd-cni -f NODE-DEBUGGER-POD",
        By("the_agent_replaces_a_damaged_and_a_revoked_token"),
    ),
    ("kubectl auth can-i ", OnCluster),
    ("kubectl rollout status ", OnCluster),
    (
        "kubectl delete daemonset linkerd-cni ",
        By("a_release_has_the_rights_it_needs_through_upgrade_rollback_and_uninstall"),
    ),
    (
        "kubectl delete role,rolebinding linkerd-cni-uninstall ",
        By("helm_uninstall_removes_the_plugin_with_a_service_account_of_the_user"),
    ),
    (
        "kubectl delete daemonsets ",
        By("linkerd_cni_names_the_rights_that_a_user_lacks_and_kubectl_uninstalls_by_label"),
    ),
    (
        "kubectl delete namespaces,",
        By("linkerd_cni_names_the_rights_that_a_user_lacks_and_kubectl_uninstalls_by_label"),
    ),
    (
        "kubectl delete serviceaccount linkerd-cni-plugin ",
        By("documented_commands_succeed_on_a_cluster"),
    ),
    (
        "kubectl delete pod -n linkerd-cni NODE-DEBUGGER-POD",
        By("the_agent_replaces_a_damaged_and_a_revoked_token"),
    ),
    (
        "kubectl patch daemonset linkerd-cni ",
        By("helm_takes_over_the_objects_that_kubectl_applied"),
    ),
    ("kubectl debug node/NODE ", By("the_agent_replaces_a_damaged_and_a_revoked_token")),
    ("linkerd cni check ", OnCluster),
    ("linkerd cni nodes ", OnCluster),
    ("linkerd cni explain ", OnCluster),
    ("linkerd cni bypass", OnCluster),
    (
        "linkerd cni compare ",
        By("linkerd_cni_compares_pods_beside_upstreams_agent_and_names_seeded_differences"),
    ),
    (
        "linkerd cni check --pre",
        By("linkerd_cni_reports_a_healthy_cluster_explains_a_pod_and_names_faults"),
    ),
    ("linkerd check ", Not(NO_LINKERD)),
    ("linkerd install ", Not(NO_LINKERD)),
    ("linkerd upgrade ", Not(NO_LINKERD)),
    ("scripts/install-cni ", By("kubectl_applies_prunes_and_deletes_what_install_cni_prints")),
    ("scripts/quickstart", By("quickstart_runs_twice_and_down_leaves_the_cluster_as_it_was")),
    ("scripts/image ", By("quickstart_runs_twice_and_down_leaves_the_cluster_as_it_was")),
    ("ctr ", By("quickstart_runs_twice_and_down_leaves_the_cluster_as_it_was")),
    ("scripts/test", Not(THIS_RUN)),
    ("scripts/matrix", Not(TAKES_LONG)),
    ("scripts/matrix --list", By("the_matrix_lists_each_row")),
    ("scripts/fleet", By("fleet")),
    ("scripts/sign ", By("signatures_are_valid_until_a_byte_changes")),
    ("cargo test --test ", By("unit-tests")),
    ("INSTA_UPDATE=always cargo test ", Not("rewrites the snapshots")),
    ("MODEL=large cargo test ", Not(TAKES_LONG)),
    (
        "cargo build --locked --release --bin linkerd-cni-cli",
        Not("a release build takes minutes: the tests run the debug build"),
    ),
    ("install -D target/release/linkerd-cni-cli ", Not("installs into the home directory")),
    ("export PATH=", Not("sets a variable of the reader's shell")),
    ("scripts/release --rebuild ", By("release")),
    ("signer=", Not("a keyless signature needs the workflow: the test has a key instead")),
    ("cosign ", By(PUBLISHED)),
    ("sha256sum --ignore-missing ", By(PUBLISHED)),
    ("skopeo copy --all ", By(PUBLISHED)),
    ("docker ", Not(NO_DOCKER)),
    ("kind load ", Not(NO_DOCKER)),
    ("k3d image import ", Not(NO_DOCKER)),
    ("minikube image load ", Not(NO_DOCKER)),
];

/// A command of a page, without its comment and with its continuation lines.
#[derive(Clone, Debug)]
pub struct Command {
    pub page: String,
    pub text: String,
}

impl Command {
    /// Returns how it is shown that the command works.
    pub fn shown(&self) -> Option<Shown> {
        let text = format!("{} ", self.text);
        let rows = COMMANDS.iter().filter(|(beginning, _)| text.starts_with(beginning));
        rows.max_by_key(|(beginning, _)| beginning.len()).map(|(_, shown)| *shown)
    }
}

/// Returns what shows that commands work, for each row.
pub fn rows() -> impl Iterator<Item = (&'static str, Shown)> {
    COMMANDS.iter().copied()
}

/// Returns the pages for users and contributors.
pub fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut directories = vec![repository().join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "charts/linkerd2-cni/README.md"];
    pages.extend(others.map(|page| repository().join(page)));
    pages
}

/// Returns the commands of all pages.
pub fn commands() -> Vec<Command> {
    let of = |page: PathBuf| {
        let text = fs::read_to_string(&page).unwrap();
        let page = page.strip_prefix(repository()).unwrap().display().to_string();
        let commands = commands_of(&text).into_iter();
        commands.map(move |text| Command { page: page.clone(), text }).collect::<Vec<_>>()
    };
    pages().into_iter().flat_map(of).collect()
}

/// Returns the commands in the blocks with the language `sh`, which a list may indent.
fn commands_of(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut in_block = false;
    let mut continues = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") {
            in_block = line == "```sh";
            continue;
        }
        let line = without_comment(line);
        if !in_block || line.is_empty() {
            continue;
        }
        let part = line.trim_end_matches('\\').trim();
        match commands.last_mut() {
            Some(last) if continues => *last = format!("{last} {part}"),
            _ => commands.push(part.to_owned()),
        }
        continues = line.ends_with('\\');
    }
    commands
}

fn without_comment(line: &str) -> &str {
    match line.find(" # ") {
        Some(at) => line[..at].trim(),
        None if line.starts_with("# ") => "",
        None => line,
    }
}
