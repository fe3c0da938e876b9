//! Two agents on one node that do not want the same: releases with different images, accounts
//! or entries, as when the next one is started before the last one ends.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::node::{CALICO, Node, PLUGIN, TEMPLATE};
use crate::until::until;

fn writes(agent: &Agent) -> u64 {
    let metrics = agent.get("/metrics").1;
    let values = metrics.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        name.ends_with("_writes_total").then(|| value.parse::<u64>().ok())?
    });
    values.sum()
}

#[test]
fn two_agents_that_want_something_else_write_ever_less_and_the_next_one_gets_ready() {
    for what in ["image", "account", "entry"] {
        let (node, other) = (Node::new(), Node::new());
        node.write("10-calico.conflist", CALICO);
        let mut old = node.start();
        old.until_ready();
        let image = other.root().join("image");
        let entry = TEMPLATE.replace("4143", "5143");
        other.rotate("token-2");
        let mut plugin = PLUGIN.to_vec();
        plugin.push(0);
        std::fs::write(image.join("linkerd-cni"), plugin).unwrap();
        let vars = match what {
            "image" => ("CONTAINER_CNI_BIN_DIR", image.to_str().unwrap().to_owned()),
            "account" => {
                ("LINKERD_CNI_SERVICE_ACCOUNT_DIR", other.sa().to_str().unwrap().to_owned())
            }
            _ => ("CNI_NETWORK_CONFIG", entry),
        };
        let mut new = node.start_owned(&[vars]);
        let (ready, begin) = (Cell::new(false), Instant::now());
        until("the next one is ready in spite of it", || {
            ready.set(ready.get() || new.ready().0 == 200);
            ready.get() && begin.elapsed() > Duration::from_secs(4)
        });
        for agent in [&old, &new] {
            assert!(writes(agent) < 30, "{what}: {}", agent.log());
            let log = agent.log();
            assert_eq!(log.matches("a second agent").count(), 1, "{what}: {log}");
            assert!(!log.contains("cni.exclusive"), "{what}: {log}");
        }
        drop(old);
        let writes_left = writes(&new);
        until("the next one is ready without the old one, and stays so", || {
            thread::sleep(Duration::from_millis(50));
            (0..5).all(|_| {
                thread::sleep(Duration::from_millis(20));
                new.ready().0 == 200
            })
        });
        assert!(writes(&new) <= writes_left + 3, "{what}: {}", new.log());
        new.kill();
        let mut uninstall = node.start_args(&["uninstall"], &[]);
        assert_eq!(uninstall.wait(), Some(0), "{}", uninstall.log());
        assert_eq!(node.text("10-calico.conflist"), CALICO);
    }
}
