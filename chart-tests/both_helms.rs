//! Helm 3 and Helm 4 render the same. `invalid_values` shows that they reject the same.

use crate::helm::{Render, ci_values, platforms};

/// Byte for byte: Helm 4 keeps an empty line at the end of a template, Helm 3 removes it.
#[test]
fn helm_3_and_helm_4_render_the_same_bytes() {
    let platforms = platforms().into_iter().map(|(_, path)| path);
    for values in ci_values().into_iter().chain(platforms) {
        let [three, four] =
            [Render::new().helm_3(), Render::new()].map(|r| r.file(&values).text().unwrap());
        assert!(three.contains("kind: DaemonSet"), "{three}");
        assert_eq!(three, four, "{}", values.display());
    }
}

#[test]
fn helm_3_requires_the_same_kubernetes_version() {
    let on = |version: &str| Render::new().helm_3().kubernetes(version).text();
    assert!(on("1.30.14").unwrap_err().contains("requires kubeVersion"));
    assert!(on("v1.31.0-gke.1829001").is_ok());
}
