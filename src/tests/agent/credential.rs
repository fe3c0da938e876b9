//! Tests the plugin's credential: how the agent gets it, renews it and repairs it, and how many
//! requests that takes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::agent_with_api::{Scene, in_parallel};
use crate::api::{Api, expired_token};
use crate::node::{CALICO, LIST, Node};
use crate::records::report_rejection;
use crate::server::Identity;
use crate::until::until;

const CHECK: &str = "/api/v1/namespaces/linkerd-cni?";
const REJECTED: &str = "rejected the token in the kubeconfig";

/// Starts an agent with an API server whose tokens are valid for this time.
fn with_token_lifetime(seconds: u64) -> Scene {
    let api = Api::start();
    api.state().life = seconds;
    Scene::start_with(api, &[])
}

#[test]
fn plugin_token_is_requested_and_renewed_at_half_its_lifetime() {
    let Scene { api, node, mut agent } = with_token_lifetime(4);
    for _ in 0..2 {
        let now = node.token();
        until("the next token", || node.token() != now);
    }
    // The API server accepts the token before the agent reports that it is ready.
    agent.until_ready();
    let request = &api.received(|request| request.method == "POST")[0].body;
    assert_eq!(request["kind"], "TokenRequest");
    assert!(request["spec"]["boundObjectRef"].is_null());
    assert!(!agent.log().contains("token-1") && !agent.log().contains(&node.token()));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    api.state().life = 7200;
    let end = || agent.metric("linkerd_cni_agent_token_expiration_timestamp_seconds");
    until("the end of the token", || end() > now + 7000.0);
    assert!(end() < now + 7500.0);
}

#[test]
fn token_that_is_invalid_in_a_header_is_rejected_and_requested_again() {
    in_parallel(["two\nlines".to_owned(), "é".into(), "x".repeat(20_000)], |unusable| {
        let Scene { api, node, mut agent } = with_token_lifetime(4);
        api.state().issued = Some(unusable.clone());
        until("the unusable token is rejected", || {
            let log = agent.log();
            assert!(!log.contains(&unusable));
            log.contains("could not be renewed")
                && log.contains("its token is missing, too long, or invalid in a request header")
        });
        let last = node.token();
        assert_ne!(last, unusable);
        api.state().issued = None;
        until("the next token", || node.token() != last);
        agent.until_ready();
    });
}

#[test]
fn agents_own_token_is_not_written_to_the_host_if_the_token_request_fails() {
    let failures = ["403", "404", "proxy", "500", "503", "429", "401", "silent", "down"];
    in_parallel(failures, |failure| {
        let api = Api::start();
        match failure {
            "silent" => api.state().silent = true,
            "down" => api.state().down = true,
            "proxy" => api.state().proxy = Some(403),
            code => api.state().grant = code.parse().unwrap(),
        }
        let node = Node::with_api(&api);
        let mut agent = node.start();
        let says = "kubeconfig: waiting for the API server to issue the token of ServiceAccount \
                    linkerd-cni-plugin: ";
        until("the reason", || agent.ready().1.contains(says));
        until("a second request", || failure == "down" || api.asked("POST", "/token") > 1);
        assert_eq!(agent.ready().0, 500, "{failure}");
        let remedy = match failure {
            "403" => Some("; grant the agent's ServiceAccount `create` on `serviceaccounts/token`"),
            "404" => Some("; create that ServiceAccount"),
            _ => None,
        };
        let metric = || agent.metric("linkerd_cni_agent_token_request_failed");
        assert_eq!(metric(), 1.0, "{failure}");
        if let Some(remedy) = remedy {
            assert!(agent.ready().1.contains(remedy), "{failure}: {:?}", agent.ready());
            assert!(agent.log().contains(remedy), "{failure}: {}", agent.log());
        }
        // A proxy in front of the API server knows no permissions.
        let is_denied = agent.log().contains("; grant the agent's");
        assert_eq!(is_denied, failure == "403", "{failure}: {}", agent.log());
        assert_eq!(node.text(LIST), CALICO, "{failure}");
        assert!(!node.net("kubeconfig.json").exists(), "{failure}");
        assert_eq!(api.asked("GET", CHECK), 0, "{failure}: there is no token to check");
        let mut state = api.state();
        (state.silent, state.down, state.grant, state.proxy) = (false, false, 201, None);
        drop(state);
        until("the metric", || metric() == 0.0);
        agent.until_ready();
        assert_ne!(node.token(), "token-1", "{failure}");
        let written = agent.log().matches("wrote kubeconfig").count();
        assert_eq!(written, 1, "{failure}: {}", agent.log());
    });
}

#[test]
fn expired_token_remains_in_the_kubeconfig_until_a_new_one_is_issued() {
    let Scene { api, node, agent } = with_token_lifetime(2);
    api.state().grant = 500;
    until("the reason", || agent.log().contains("could not be renewed"));
    let last = node.token();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(node.token(), last);
    api.state().tokens.retain(|token| *token != last);
    api.state().grant = 403;
    report_rejection(&node);
    until("the remedy", || {
        let (status, why) = agent.ready();
        status == 500 && why.contains(REJECTED) && why.contains("; grant the agent's")
    });
    assert_eq!(node.token(), last);
    api.state().grant = 201;
    until("a new token", || node.token() != last);
    assert_ne!(node.token(), "token-1");
}

#[test]
fn agent_without_a_token_keeps_the_kubeconfig_of_an_earlier_agent() {
    let tokens = [expired_token(), "token-0".to_owned(), "token-1".to_owned()];
    in_parallel(
        tokens.iter().flat_map(|token| [(token, 503), (token, 403)]),
        |(token, failure)| {
            let Scene { api, node, mut agent } = Scene::start(&[]);
            agent.kill();
            let kubeconfig = node.text("kubeconfig.json").replace(&node.token(), token);
            node.replace(&node.net("kubeconfig.json"), kubeconfig.as_bytes());
            api.state().grant = failure;
            let inode = node.inode("kubeconfig.json");
            let asked = api.asked("POST", "/token");
            let mut agent = node.start();
            until("some requests", || api.asked("POST", "/token") > asked + 3);
            assert_eq!(node.inode("kubeconfig.json"), inode);
            assert!(node.chained(LIST));
            fs::remove_file(node.net("kubeconfig.json")).unwrap();
            until("the kubeconfig is back", || node.token() == *token);
            // The restored token may be rejected, which `/ready` then reports.
            until("the verdict", || match (token.as_str(), agent.ready()) {
                ("token-1", (200, note)) => note.contains(&format!("HTTP {failure}")),
                ("token-1", _) => false,
                (_, (_, why)) => why.contains(REJECTED),
            });
            api.state().grant = 201;
            until("a token", || node.token() != *token);
            agent.until_ready();
        },
    );
}

#[test]
fn ready_names_a_rejected_token_until_it_is_replaced() {
    let api = Api::start();
    api.state().tokens.clear();
    let node = Node::with_api(&api);
    // Like with upstream's chart, the plugin has no ServiceAccount of its own.
    let mut agent = node.start_with(&[("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "")]);
    let why = "the API server rejected the agent's own token (HTTP 401)";
    until("the reason", || agent.ready().1.contains(why));
    assert!(!node.chained(LIST));
    api.state().tokens.push("token-2".into());
    node.rotate("token-2");
    agent.until_ready();
    agent.kill();
    // An installed node keeps its plugin entry. Without the entry, meshed pods would start without
    // redirect rules.
    api.state().tokens.clear();
    let mut agent = node.start_with(&[("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "")]);
    until("the reason", || agent.ready().1.contains(REJECTED));
    node.rewrite_calico();
    api.state().tokens.push("token-2".into());
    agent.until_ready();
}

#[test]
fn silent_api_server_does_not_delay_chaining_on_an_installed_node() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    agent.kill();
    api.state().silent = true;
    let agent = node.start();
    let begin = Instant::now();
    // Each request to this API server times out after 3 s. Chaining must not wait for a request.
    for number in 0..20 {
        let text = CALICO.replace("1e3", &format!("{number}e3"));
        node.replace(&node.net(LIST), text.as_bytes());
        until("the entry", || node.chained(LIST));
    }
    assert!(begin.elapsed() < Duration::from_secs(40));
    until("the reason", || agent.ready().1.contains("has not responded yet: "));
    api.state().silent = false;
    until("ready", || agent.ready().0 == 200);
}

#[test]
fn agent_adopts_a_new_certificate_authority() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    api.present(Identity::of_localhost());
    api.state().tokens.retain(|token| token == "token-1");
    api.state().down = true;
    thread::sleep(Duration::from_millis(50));
    api.state().down = false;
    node.use_api(&api);
    let asked = api.asked("POST", "/token");
    until("a token over the new certificate", || api.asked("POST", "/token") > asked);
    agent.until_ready();
}

#[test]
fn fifo_or_huge_file_at_the_path_of_the_kubeconfig_is_replaced() {
    for is_fifo in [true, false] {
        let api = Api::start();
        let node = Node::with_api(&api);
        let path = node.net("kubeconfig.json");
        if is_fifo {
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        } else {
            fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let mut agent = node.start_ready();
        assert!(node.chained(LIST) && !node.token().is_empty());
        assert_eq!(agent.stop(), Some(0));
    }
}

#[test]
fn idle_agent_sends_no_requests_after_its_start() {
    let Scene { api, node, mut agent } = Scene::start(&[("LINKERD_CNI_NODE_NAME", "node-1")]);
    let token = "POST /api/v1/namespaces/linkerd-cni/serviceaccounts/linkerd-cni-plugin/token";
    let check = "GET /api/v1/namespaces/linkerd-cni?resourceVersion=0";
    let pod =
        "GET /api/v1/namespaces/linkerd-cni/pods?fieldSelector=metadata%2Ename%3Dlinkerd%2Dcni%2Dx";
    let list = &format!("{pod}&resourceVersion=0");
    let watch = &format!("{pod}&watch=true&allowWatchBookmarks=true");
    // Neither plugin records of other failures nor changes by other programs cause requests.
    crate::records::report_unreachable(&node);
    node.rewrite_calico();
    agent.until_ready();
    thread::sleep(Duration::from_secs(10));
    // Cut off the timeout of the watch, because it is random.
    let requests = || {
        let requests = api.requests().into_iter();
        let mut requests: Vec<_> =
            requests.map(|line| line.split("&timeout").next().unwrap().to_owned()).collect();
        requests.sort();
        requests
    };
    assert_eq!(requests(), [list, watch, check, token]);
    // Ignore the warning that the bin dir has no plugins of the primary CNI.
    let mut warnings = agent.log().lines().filter(|line| line.contains("WARN")).count();
    warnings -= agent.log().matches("WARN CNI directories: ").count();
    assert_eq!(warnings, 0, "{}", agent.log());
    assert_eq!(agent.stop(), Some(0));

    // The next agent uses the same token.
    api.state().requests.clear();
    let _agent = node.start_ready();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(requests(), [list, watch, check]);
}

/// A proxy in front of the API server responds with the same status codes, also that of a success.
#[test]
fn a_proxys_status_code_is_no_verdict_on_the_plugins_token() {
    let of_proxy = json!({"message": "no route", "reason": "x"});
    let metadata = json!({"name": "linkerd-cni"});
    let cases = [
        (401, of_proxy.clone()),
        (403, of_proxy.clone()),
        (404, of_proxy.clone()),
        (200, of_proxy),
        (200, json!({"kind": "Namespace", "metadata": {"name": "other"}})),
        (200, json!({"kind": "Service", "metadata": metadata})),
        (200, json!({"metadata": metadata})),
    ];
    in_parallel(cases, |(code, response)| {
        let Scene { api, node, mut agent } = Scene::start(&[]);
        let token = node.token();
        api.state().namespace = Some((code, response));
        let asked = api.asked("GET", CHECK);
        let issued = api.asked("POST", "/token");
        report_rejection(&node);
        until("two more tries", || api.asked("GET", CHECK) >= asked + 3);
        assert_eq!(agent.ready().0, 200, "{code}: {:?}", agent.ready());
        let says = "cannot check the token in the kubeconfig: ";
        assert!(agent.log().contains(says), "{code}: {}", agent.log());
        assert_eq!((api.asked("POST", "/token"), node.token()), (issued, token), "{code}");
        api.state().namespace = None;
        until("an answer", || agent.log().contains("kubeconfig token: resolved"));
        agent.until_ready();
    });
}

#[test]
fn failed_token_check_is_repeated_and_the_node_stays_ready() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    api.state().namespace = Some((503, json!({"message": "overloaded"})));
    let asked = api.asked("GET", CHECK);
    report_rejection(&node);
    until("two retries", || api.asked("GET", CHECK) >= asked + 3);
    assert_eq!(agent.ready().0, 200, "{:?}", agent.ready());
    let says = "WARN kubeconfig token: cannot check the token in the kubeconfig: ";
    assert_eq!(agent.log().matches(says).count(), 1, "{}", agent.log());
    api.state().namespace = None;
    until("a response", || agent.log().contains("kubeconfig token: resolved"));
    agent.until_ready();
}
