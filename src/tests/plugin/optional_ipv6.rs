//! `ipv6: auto` in a pod without IPv6 address: the pod starts without IPv6 rules only if the node cannot
//! have any.

use std::os::unix::fs::symlink;

use super::{Scene, write_program};

pub fn without_ipv6_address() -> Scene {
    let scene = Scene::meshed();
    scene.sh("ip -6 address flush dev eth0");
    scene
}

#[test]
fn ipv6_is_left_out_only_where_the_node_lacks_it() {
    let cases = [
        ("can't initialize ip6tables table: Table does not exist (do you need to insmod?)", 0),
        ("Another app is currently holding the xtables lock", 121),
    ];
    for (problem, wanted) in cases {
        let scene = without_ipv6_address();
        let programs = tempfile::tempdir().unwrap();
        for suffix in ["", "-restore"] {
            let name = format!("iptables-nft{suffix}");
            symlink(format!("/usr/sbin/{name}"), programs.path().join(name)).unwrap();
            let path = programs.path().join(format!("ip6tables-nft{suffix}"));
            write_program(&path, &format!("echo \"{problem}\" >&2\nexit 4"));
        }
        let call = |command| scene.in_mode("nft", command).env("PATH", programs.path());
        let auto = |command| call(command).linkerd("ipv6", "auto").run();
        let add = auto("ADD");
        if wanted == 0 {
            add.succeeded().logs("IPv6 is not redirected");
            assert!(scene.has_rules(), "{problem}");
            auto("CHECK").succeeded();
            continue;
        }
        add.failed(wanted, "");
        assert!(!scene.has_rules(), "{problem}");
        call("ADD").linkerd("ipv6", false).run().succeeded();
        auto("CHECK").succeeded();
    }
}
