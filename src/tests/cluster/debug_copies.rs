//! Copies of a meshed pod that `kubectl debug --copy-to` makes, with kubectl's own defaults: nothing but the containers
//! shows that they are meshed.

use std::time::Duration;

use crate::pods::{self, kubectl};
use crate::repair::set;
use crate::scene::Scene;
use crate::until::{until, until_within};

const PROFILES: [&str; 5] = ["general", "baseline", "restricted", "netadmin", "sysadmin"];

#[test]
fn an_audit_repairs_the_copies_of_kubectl_debug_in_place_with_each_profile() {
    let scene = Scene::installed(&[]);
    let Scene { helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client"), pods::meshed("web")]);
    // An audit repairs no pod if most pods of the node lack rules.
    let healthy: Vec<_> =
        PROFILES.map(|profile| pods::meshed(&format!("healthy-{profile}"))).into();
    pods.start(&healthy);
    for profile in PROFILES {
        let [copy, profile] = [format!("--copy-to=web-{profile}"), format!("--profile={profile}")];
        let image = "--image=docker.io/library/linkerd2-cni-probe:test";
        let debug = ["debug", "-n", "web", "web", &copy, &profile, image];
        let run = ["--image-pull-policy=Never", "--container=debugger", "--attach=false"];
        kubectl(&[&debug[..], &run, &["--", "/probe", "wait", "60m"]].concat());
    }
    let field = |profile: &str, path: &str| {
        let path = format!("jsonpath={{{path}}}");
        kubectl(&["get", "pod", "-n", "web", &format!("web-{profile}"), "-o", &path])
    };
    let running = ".status.containerStatuses[?(@.name=='linkerd-proxy')].state.running";
    let response = |profile: &str| {
        let target = format!("{}:8080", field(profile, ".status.podIP"));
        pods.connect("client", "app", &target)
    };
    for profile in PROFILES {
        until("the copy's proxy runs", || !field(profile, running).is_empty());
        let metadata =
            field(profile, ".metadata.labels") + &field(profile, ".metadata.annotations");
        assert!(!metadata.contains("linkerd.io"), "{profile}: {metadata}");
        println!("{profile}: phase {}, metadata {metadata:?}", field(profile, ".status.phase"));
        until("the copy starts bare", || response(profile).starts_with("app-of-web"));
    }
    // The debug container must not run as root with this profile, and its image has no other user.
    assert_eq!(field("restricted", ".status.phase"), "Pending");

    helm.run("upgrade", &[&set("in-place", 3)]);
    for profile in PROFILES {
        until_within(Duration::from_secs(60), "the audit repairs the copy", || {
            response(profile).starts_with("proxy-inbound")
        });
        let copy = format!("involvedObject.name=web-{profile},reason=LinkerdCNIRulesMissing");
        until("the Event on the copy", || {
            !kubectl(&format!("get events -n web -o name --field-selector {copy}")).is_empty()
        });
    }
    scene.remove();
}
