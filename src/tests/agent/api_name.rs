//! Tests a host name in `KUBERNETES_SERVICE_HOST`. The agent resolves the name, and writes an
//! address to the plugin's kubeconfig.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rcgen::CertificateParams;
use testkit::upstream_agent::UpstreamAgent;

use crate::agent::Agent;
use crate::api::Api;
use crate::filesystems::{bind, in_mount_namespace};
use crate::node::{CALICO, LIST, Node, TEMPLATE};
use crate::records::report_unreachable;
use crate::server::Identity;
use crate::until::until;
use crate::upstream::{self, until_yielding};

const NAME: &str = "api.example";

/// A node, and an API server whose certificate is only for [`NAME`]. `/etc/hosts` contains the
/// addresses of this name.
struct Scene {
    node: Node,
    api: Api,
    hosts: PathBuf,
    template: String,
}

impl Scene {
    /// Runs `test` in a mount namespace in which [`NAME`] has no address yet.
    fn with(test: fn(Scene)) {
        Scene::with_template(TEMPLATE, test);
    }

    /// Runs `test` with a template that differs from upstream's, and with the same template.
    fn with_upstream(test: fn(Scene)) {
        for template in &upstream::templates() {
            Scene::with_template(template, test);
        }
    }

    fn with_template(template: &str, test: fn(Scene)) {
        let template = template.to_owned();
        in_mount_namespace(move || {
            let api = Api::start();
            api.present(Identity::new(&CertificateParams::new([NAME.into()]).unwrap()));
            let node = Node::with_api(&api);
            let hosts = node.root().join("hosts");
            fs::write(&hosts, "").unwrap();
            bind(&hosts, "/etc/hosts".as_ref());
            // With no DNS server at this address, lookups fail immediately.
            let resolver = node.root().join("resolv.conf");
            fs::write(&resolver, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();
            bind(&resolver, "/etc/resolv.conf".as_ref());
            test(Scene { node, api, hosts, template });
        });
    }

    fn resolves_to(&self, addresses: &[&str]) {
        let lines = addresses.iter().map(|address| format!("{address} {NAME}\n"));
        fs::write(&self.hosts, lines.collect::<String>()).unwrap();
    }

    fn start(&self) -> Agent {
        let resync = ("LINKERD_CNI_RESYNC_SECONDS", "5");
        let template = ("CNI_NETWORK_CONFIG", self.template.as_str());
        self.node.start_with(&[("KUBERNETES_SERVICE_HOST", NAME), resync, template])
    }

    fn start_ready(&self) -> Agent {
        let mut agent = self.start();
        agent.until_ready();
        agent
    }

    /// Returns the kubeconfig of upstream's agent, with the host name of the API server.
    fn upstream_kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    server: {}\nusers:\n- name: \
             linkerd-cni\n  user:\n    token: token-1\ncontexts:\n- name: linkerd-cni-context\n  context:\n    \
             cluster: local\n    user: linkerd-cni\n",
            self.url(NAME)
        )
    }

    fn start_upstream(&self) -> UpstreamAgent {
        self.resolves_to(&["127.0.0.1"]);
        upstream::start(&self.node, &self.upstream_kubeconfig())
    }

    /// Returns whether plugin binary and kubeconfig are both upstream's.
    fn has_upstream_files(&self) -> bool {
        fs::read(self.node.bin("linkerd-cni")).unwrap() == upstream::PLUGIN
            && self.node.text("kubeconfig.json") == self.upstream_kubeconfig()
    }

    /// Waits until the agent has replaced plugin binary and kubeconfig. Asserts that it replaces
    /// the kubeconfig first.
    fn until_replaced(&self) {
        until("the plugin", || {
            let is_replaced = self.node.has_own_binary();
            if is_replaced {
                assert_ne!(self.node.text("kubeconfig.json"), self.upstream_kubeconfig());
            }
            is_replaced && self.server().0 == self.url("127.0.0.1")
        });
    }

    fn url(&self, host: &str) -> String {
        format!("https://{host}:{}", self.api.address.port())
    }

    /// Returns the server and the TLS server name in the kubeconfig.
    fn server(&self) -> (String, String) {
        let cluster = &self.node.kubeconfig()["clusters"][0]["cluster"];
        let text = |key: &str| cluster[key].as_str().unwrap_or_default().to_owned();
        (text("server"), text("tls-server-name"))
    }

    fn until_address(&self, address: &str) {
        let wanted = (self.url(address), NAME.to_owned());
        until(address, || self.server() == wanted);
    }

    /// Makes the API server also listen at this address, on the same port.
    fn serve_at(&self, address: &str) {
        let listener = TcpListener::bind((address, self.api.address.port())).unwrap();
        self.api.serve(listener);
    }
}

#[test]
fn kubeconfig_gets_a_reachable_address_and_the_name_in_the_certificate() {
    Scene::with(|scene| {
        // Nothing listens at the first address.
        scene.resolves_to(&["127.0.0.9", "127.0.0.1"]);
        let mut agent = scene.start_ready();
        assert_eq!(scene.server(), (scene.url("127.0.0.1"), NAME.into()));
        assert!(scene.node.chained(LIST));
        assert_eq!(agent.stop(), Some(0));
    });
}

#[test]
fn kubeconfig_keeps_its_address_until_the_name_resolves_to_a_new_one() {
    Scene::with(|scene| {
        scene.serve_at("127.0.0.2");
        scene.resolves_to(&["127.0.0.1"]);
        let mut agent = scene.start_ready();
        let inode = scene.node.inode("kubeconfig.json");

        scene.resolves_to(&[]);
        report_unreachable(&scene.node);
        let warning =
            "the API server's name cannot be resolved, so the plugin keeps its last address";
        until("the warning", || agent.log().contains(warning));
        agent.until_ready();
        assert_eq!(scene.node.inode("kubeconfig.json"), inode);
        assert_eq!(scene.server().0, scene.url("127.0.0.1"));

        // An agent that starts now takes the address from the kubeconfig.
        agent.kill();
        let mut agent = scene.start_ready();
        until("the warning", || agent.log().contains(warning));
        assert_eq!(scene.node.inode("kubeconfig.json"), inode);

        scene.resolves_to(&["127.0.0.2"]);
        scene.until_address("127.0.0.2");
        agent.until_ready();
        assert_eq!(agent.stop(), Some(0));
    });
}

/// The agent must not keep switching addresses during an outage of the API server.
#[test]
fn api_server_that_is_down_at_all_addresses_causes_only_one_address_change() {
    Scene::with(|scene| {
        scene.resolves_to(&["127.0.0.1"]);
        let agent = scene.start_ready();
        // Nothing listens at these addresses.
        scene.resolves_to(&["127.0.0.8", "127.0.0.9"]);
        report_unreachable(&scene.node);
        scene.until_address("127.0.0.8");
        thread::sleep(Duration::from_secs(6));
        assert_eq!(agent.log().matches("wrote kubeconfig").count(), 2, "{}", agent.log());
    });
}

#[test]
fn agent_is_ready_and_chains_the_plugin_only_after_the_name_resolves() {
    Scene::with(|scene| {
        let mut agent = scene.start();
        let why = format!("kubeconfig: cannot resolve the API server's name {NAME}: ");
        until("the reason", || agent.ready().1.contains(&why));
        assert_eq!(agent.ready().0, 500);
        assert!(agent.ready().1.contains("check KUBERNETES_SERVICE_HOST"), "{:?}", agent.ready());
        assert_eq!(scene.node.text(LIST), CALICO);
        assert!(!scene.node.net("kubeconfig.json").exists());
        scene.resolves_to(&["127.0.0.1"]);
        agent.until_ready();
        assert!(scene.node.chained(LIST));
    });
}

#[test]
fn upstream_plugin_is_replaced_only_after_the_kubeconfig_has_an_address() {
    Scene::with(|scene| {
        // Upstream's agent leaves this kubeconfig and this plugin.
        scene.node.write("kubeconfig.json", &scene.upstream_kubeconfig());
        testkit::write_program(scene.node.bin("linkerd-cni"), upstream::PLUGIN);
        let mut agent = scene.start();
        until("the reason", || agent.ready().1.contains("cannot resolve the API server's name"));
        assert!(scene.has_upstream_files());

        scene.resolves_to(&["127.0.0.1"]);
        scene.until_replaced();
        agent.until_ready();
        let log = agent.log();
        let at = |line: &str| log.find(line).unwrap_or_else(|| panic!("no {line} in {log}"));
        assert!(at("wrote kubeconfig") < at("Wrote linkerd CNI binaries"), "{log}");
    });
}

/// During a `helm upgrade` from upstream's chart with `maxSurge`, both agents run.
#[test]
fn plugin_and_kubeconfig_of_an_upstream_agent_are_replaced_only_after_it_exits() {
    Scene::with_upstream(|scene| {
        for is_killed in [false, true] {
            let upstream = scene.start_upstream();
            let mut agent = scene.start();
            until_yielding(&agent);
            assert!(scene.has_upstream_files(), "{}", agent.log());
            // A rollback stops or kills the agent.
            if is_killed {
                agent.kill();
            } else {
                assert_eq!(agent.stop(), Some(0));
            }
            assert!(scene.has_upstream_files(), "{}", agent.log());

            let mut agent = scene.start();
            until_yielding(&agent);
            if is_killed {
                upstream.kill();
            } else {
                drop(upstream);
            }
            scene.until_replaced();
            agent.until_ready();
            assert!(upstream::is_replaced(&scene.node.text(LIST)));
            assert!(is_killed || !agent.log().contains("overwritten"), "{}", agent.log());
        }
    });
}

/// During a `helm rollback` to upstream's chart, upstream's agent starts last.
#[test]
fn agent_does_not_replace_the_files_of_an_upstream_agent_that_starts_later() {
    Scene::with_upstream(|scene| {
        scene.resolves_to(&["127.0.0.1"]);
        let mut agent = scene.start_ready();
        let upstream = scene.start_upstream();
        until_yielding(&agent);
        assert_eq!(agent.stop(), Some(0));
        assert!(scene.has_upstream_files(), "{}", agent.log());
        upstream.kill();
    });
}
