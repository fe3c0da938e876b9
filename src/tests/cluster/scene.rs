//! The begin and the end of most tests: the node, a release of the chart, and pods.

use crate::helm::Helm;
use crate::node::{Files, Node, copied_pods};
use crate::pods::Pods;
pub use testkit::OnDrop;

/// After a panic, dropping the value deletes the pods, then the release, and then lets the next
/// test use the node.
pub struct Scene {
    pub pods: Pods,
    pub helm: Helm,
    pub node: Node,
    pub before: Files,
}

impl Scene {
    /// Waits until no other test uses the node. Installs nothing.
    pub fn begin() -> Scene {
        let node = Node::exclusive();
        let before = node.files();
        Scene { pods: Pods::default(), helm: Helm::new(), node, before }
    }

    /// Waits until no other test uses the node, and installs the chart with these arguments of
    /// helm.
    pub fn installed(more: &[&str]) -> Scene {
        let scene = Scene::begin();
        scene.helm.run("install", more);
        scene
    }

    pub fn is_restored(&self) -> bool {
        self.node.files() == self.before
    }

    /// Deletes the pods, and removes the release by [`Helm::remove`], which is fast. Fails unless
    /// the node then has the same files as before.
    pub fn remove(self) {
        self.end(Helm::remove);
    }

    /// Like [`Scene::remove`], but by `helm uninstall` alone, as users run it.
    pub fn uninstall(self) {
        self.end(Helm::uninstall);
    }

    fn end(self, uninstall: impl Fn(&Helm)) {
        drop(self.pods);
        uninstall(&self.helm);
        assert_eq!(self.node.files(), self.before, "uninstalling leaves the node's files");
        assert_eq!(copied_pods(), [""; 0], "uninstalling removes the copy of the node's pods");
    }
}
