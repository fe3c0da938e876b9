//! A release whose ServiceAccounts outlive it (`serviceAccount.create: false`), or are deleted with
//! its namespace.

use std::fs;

use crate::helm::NAMESPACE;
use crate::kubectl::{command, kubectl};
use crate::scene::{OnDrop, Scene};

const ACCOUNTS: [&str; 2] = ["serviceaccount/cni-agent", "serviceaccount/linkerd-cni-plugin"];
const KEPT: [&str; 2] = ["role/linkerd-cni-uninstall", "rolebinding/linkerd-cni-uninstall"];

/// Creates the ServiceAccounts. Dropping the returned value deletes them, and also the objects that
/// the release keeps, because later releases create objects with these names.
fn create_accounts() -> OnDrop<impl FnMut()> {
    // The namespace exists if another test ran before.
    let _ = command(&format!("create namespace {NAMESPACE}")).output();
    let accounts = OnDrop(|| {
        for object in ACCOUNTS.iter().chain(&KEPT) {
            let _ = command(&format!("delete {object} -n {NAMESPACE} --ignore-not-found")).output();
        }
    });
    for account in ACCOUNTS {
        let (kind, name) = account.split_once('/').unwrap();
        kubectl(&format!("create {kind} {name} -n {NAMESPACE}"));
    }
    accounts
}

#[test]
fn plugin_is_uninstalled_if_the_service_account_is_the_users() {
    let scene = Scene::begin();
    let node = &scene.node;
    let helm = &scene.helm;
    let before = &scene.before;
    let _accounts = create_accounts();
    let values = "serviceAccount.create=false,serviceAccount.name=cni-agent";
    let keep =
        ["--set=extraEnv[0].name=LINKERD_CNI_KEEP_BINARY", "--set-string=extraEnv[0].value=true"];
    helm.run("install", &[&keep[..], &["--set", values]].concat());
    assert!(node.is_chained());
    helm.uninstall();
    fs::remove_file("/opt/cni/bin/linkerd-cni").expect("the binary is kept");
    assert_eq!(node.files(), *before, "uninstalling leaves the node's files");

    kubectl(&format!("get -n {NAMESPACE} role/linkerd-cni-uninstall"));
    // The kept objects belong to the release, so the next one takes them over.
    helm.run("install", &["--set", values]);
    kubectl(&format!("delete namespace {NAMESPACE} --timeout=60s"));
    assert_eq!(node.files(), *before, "deleting the namespace leaves the node's files");
    // The next release takes over the objects that are in no namespace.
    helm.run("install", &[]);
    scene.remove();
}
