//! Helm 3 and Helm 4 make the same of the chart.

use crate::helm::{Render, ci_values, platforms};
use crate::schema;

/// To the byte: Helm 4 keeps an empty line at a template's end, which Helm 3 takes away.
#[test]
fn helm_3_renders_what_helm_4_does() {
    let platforms = platforms().into_iter().map(|(_, path)| path);
    for values in ci_values().into_iter().chain(platforms) {
        let [three, four] =
            [Render::new().helm_3(), Render::new()].map(|r| r.file(&values).text().unwrap());
        assert!(three.contains("kind: DaemonSet"), "{three}");
        assert_eq!(three, four, "{}", values.display());
    }
}

#[test]
fn helm_3_refuses_what_helm_4_does() {
    for (values, expected) in schema::wrong() {
        match Render::new().helm_3().values(&values).text() {
            Ok(_) => panic!("accepted: {values}"),
            Err(complaint) => assert!(complaint.contains(expected), "{values}: {complaint}"),
        }
    }
}

#[test]
fn helm_3_asks_for_the_same_kubernetes() {
    let on = |version: &str| Render::new().helm_3().kubernetes(version).text();
    assert!(on("1.30.14").unwrap_err().contains("requires kubeVersion"));
    assert!(on("v1.31.0-gke.1829001").is_ok());
}
