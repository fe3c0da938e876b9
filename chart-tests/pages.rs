//! The pages for operators: README.md, docs and the chart's README.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::json;

use crate::commands;
use crate::helm::{chart, files_below, read, render};
use crate::schema::keys_without_effect;
use testkit::repository;

fn chart_readme() -> PathBuf {
    chart().join("README.md")
}

fn pages() -> Vec<PathBuf> {
    let mut pages = commands::pages();
    pages.push(repository().join("CHANGELOG.md"));
    pages
}

fn links(text: &str) -> Vec<&str> {
    let mut links = Vec::new();
    for (begin, end) in [("](", ')'), (" src=\"", '"'), (" srcset=\"", '"')] {
        for rest in text.split(begin).skip(1) {
            links.push(rest.split(end).next().unwrap());
        }
    }
    links
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in text.lines().filter(|line| line.starts_with('#')) {
        let mut anchor = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        anchor.retain(|c| c.is_alphanumeric() || c == '-' || c == '_');
        anchors.insert(anchor);
    }
    anchors
}

#[test]
fn every_link_leads_to_an_existing_heading() {
    for page in pages() {
        let text = read(&page);
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.starts_with("https://") {
                continue;
            } else if path.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(path)
            };
            assert!(target.exists(), "{}: {link}", page.display());
            let has_anchor = anchor.is_empty() || anchors(&read(&target)).contains(anchor);
            assert!(has_anchor, "{}: {link}: no such heading", page.display());
        }
    }
}

#[test]
fn list_of_tasks_links_to_every_page() {
    let docs = repository().join("docs");
    let list = read(docs.join("README.md"));
    for page in pages().iter().filter(|page| page.parent() == Some(docs.as_path())) {
        let name = page.file_name().unwrap().to_str().unwrap();
        let is_listed = name == "README.md" || list.contains(&format!("]({name}"));
        assert!(is_listed, "docs/README.md does not lead to {name}");
    }
}

#[test]
fn charts_readme_has_no_links_out_of_the_package() {
    let text = read(chart_readme());
    for link in links(&text) {
        let is_packaged = !link.contains("..") && !link.starts_with("docs/");
        assert!(is_packaged || link.starts_with("https://"), "{link}");
    }
}

#[test]
fn monitoring_lists_the_reason_of_every_event() {
    let mut reasons = BTreeSet::new();
    for path in files_below(&repository().join("src"), "rs") {
        for rest in read(path).split("\"LinkerdCNI").skip(1) {
            let name = rest.split('"').next().unwrap();
            if !name.contains('{') {
                reasons.insert(format!("`LinkerdCNI{name}`"));
            }
        }
    }
    assert!(reasons.len() >= 4, "{reasons:?}");
    let page = read(repository().join("docs/monitoring.md"));
    for reason in reasons {
        assert!(page.contains(&format!("| {reason} | ")), "{reason}");
    }
}

#[test]
fn charts_readme_names_every_value_without_effect() {
    let text = read(chart_readme());
    let keys = keys_without_effect("Has no effect");
    assert!(keys.len() > 10, "{keys:?}");
    for key in keys {
        assert!(text.contains(&format!("`{key}`")), "{key}");
    }
}

/// Returns the lines of a page's commands, without the indentation of lists.
fn commands(text: &str) -> Vec<&str> {
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(str::lines).map(str::trim).collect()
}

#[test]
fn no_documented_command_installs_upstreams_chart_by_mistake() {
    for page in pages() {
        let text = read(&page);
        for line in commands(&text) {
            assert!(!line.contains("linkerd/linkerd2-cni"), "{}: {line}", page.display());
        }
    }
}

/// Cluster Autoscaler keeps any other taint in its node template, and then never scales up.
#[test]
fn every_startup_taint_has_cluster_autoscalers_prefix() {
    const KEY: &str = "startup-taint.cluster-autoscaler.kubernetes.io/linkerd-cni";
    render(json!({"startupTaint": KEY}));
    let section = read(repository().join("docs/startup-taint.md"));
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(rows.len() >= 6 && rows.iter().all(|row| row.contains(KEY)), "{rows:?}");
    assert!(section.contains(&format!("--set startupTaint={KEY}")), "{section}");
    assert!(read(chart().join("values.yaml")).contains(KEY));
}
