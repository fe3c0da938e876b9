//! The alerts and the dashboard. promtool checks their expressions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::helm::{Objects, chart, read, render, yaml};
use testkit::repository;

fn alerts() -> Objects {
    render(json!({"prometheusRule": {"enabled": true}}))
}

fn rules(objects: &Objects) -> Vec<Value> {
    let groups = objects.get("PrometheusRule")["spec"]["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read(chart().join("dashboards/linkerd-cni.json"))).unwrap()
}

fn panels() -> Vec<Value> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    panels.iter().filter(|panel| panel["type"] != "row").cloned().collect()
}

/// Replaces the variables of the dashboard in an expression.
fn replace_variables(expression: &Value) -> String {
    let mut text = expression.as_str().unwrap().replace("$__rate_interval", "5m");
    for variable in ["$cluster", "$namespace", "$node"] {
        text = text.replace(variable, ".*");
    }
    text
}

fn panel_expressions() -> Vec<String> {
    let panels = panels();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| replace_variables(&target["expr"])).collect()
}

/// Runs promtool, and returns its output. Fails if promtool fails.
fn promtool(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("promtool").args(arguments).current_dir(directory).output();
    let output = output.expect("promtool is missing: scripts/tools promtool");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn each_alert_fires_on_its_problem_and_not_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let rules = alerts().get("PrometheusRule")["spec"].to_string();
    fs::write(directory.path().join("rules.json"), rules).unwrap();
    let tests = repository().join("chart-tests/alerts.yaml");
    fs::copy(&tests, directory.path().join("alerts.yaml")).unwrap();
    promtool(directory.path(), &["check", "rules", "--lint=all", "--lint-fatal", "rules.json"]);
    promtool(directory.path(), &["test", "rules", "alerts.yaml"]);
    let tests = read(tests);
    for rule in self::rules(&alerts()) {
        let name = rule["alert"].as_str().unwrap();
        assert!(
            tests.contains(&format!("alertname: {name}"))
                || tests.contains(&format!("alertname=\"{name}\"")),
            "{name} has no test"
        );
    }
}

#[test]
fn each_alert_has_severity_texts_and_a_complete_runbook() {
    let page = read(repository().join("docs/alerts.md"));
    let rules = rules(&alerts());
    assert_eq!(rules.len(), 8);
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        let severity = rule["labels"]["severity"].as_str().unwrap();
        let by_code =
            r#"{{ if match "^11[0-2]$" $labels.code }}warning{{ else }}critical{{ end }}"#;
        assert!(["critical", "warning", "info", by_code].contains(&severity), "{name}");
        let annotations = &rule["annotations"];
        for key in ["summary", "description"] {
            let text = annotations[key].as_str().unwrap();
            assert!(!text.is_empty() && !text.contains("  ") && !text.contains('\n'), "{text:?}");
        }
        let url = annotations["runbook_url"].as_str().unwrap();
        let (base, anchor) = url.split_once('#').unwrap();
        assert_eq!(base, "docs/alerts.md");
        assert_eq!(anchor, name.to_lowercase());
        let documented_severity = if severity == by_code {
            "critical; warning with the codes 110 to 112"
        } else {
            severity
        };
        let row = format!("| [{name}](#{anchor}) | {documented_severity} |");
        assert!(page.contains(&row), "docs/alerts.md has no row {row}");
        let section = page.split_once(&format!("\n## {name}\n")).unwrap().1;
        let section = section.split("\n## ").next().unwrap();
        for part in ["**Meaning**", "**Impact**", "**Diagnosis**", "**Remedy**", "```sh"] {
            assert!(section.contains(part), "{name} lacks {part}");
        }
    }
    let headings = page.lines().filter(|line| line.starts_with("## LinkerdCNI")).count();
    assert_eq!(headings, rules.len(), "docs/alerts.md has an alert that does not exist");
}

/// Returns the metrics of an expression, by their prefixes. No function, label or keyword has one
/// of these prefixes.
fn metrics(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| {
        ["linkerd_cni_", "kube_", "process_"].iter().any(|prefix| word.starts_with(prefix))
            || *word == "up"
    };
    words.filter(is_metric).collect()
}

#[test]
fn alerts_and_dashboard_use_documented_metrics_only() {
    let page = read(repository().join("docs/monitoring.md"));
    let has_row = |name: &str| page.contains(&format!("| `{name}` |"));
    let is_documented = |name: &str| {
        // The page has the name of a histogram without the suffixes of its series.
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        has_row(name) || histogram.is_some_and(has_row)
    };
    let rules = rules(&alerts());
    let rule_expressions = rules.iter().map(|rule| rule["expr"].as_str().unwrap().to_owned());
    for expression in rule_expressions.chain(panel_expressions()) {
        let metrics = metrics(&expression);
        assert!(!metrics.is_empty(), "{expression}");
        for name in metrics {
            assert!(is_documented(name), "docs/monitoring.md lacks {name} of {expression}");
        }
    }
}

#[test]
fn each_panel_has_title_description_unit_and_the_data_source_variable() {
    let variables = dashboard()["templating"]["list"].clone();
    assert_eq!(variables[0]["name"], "datasource");
    assert_eq!(variables[0]["query"], "prometheus");
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let panels = panels();
    assert!(panels.len() > 10);
    let mut ids = BTreeSet::new();
    let mut titles = BTreeSet::new();
    for panel in &panels {
        let title = panel["title"].as_str().unwrap();
        assert!(!title.is_empty() && titles.insert(title), "{title}");
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{title}");
        assert!(!panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap().is_empty(), "{title}");
        assert_eq!(panel["datasource"], source, "{title}");
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"], source, "{title}");
            assert!(!target["legendFormat"].as_str().unwrap().is_empty(), "{title}");
            let expression = target["expr"].as_str().unwrap();
            let filter = r#"{cluster=~"$cluster",namespace=~"$namespace",node=~"$node""#;
            assert!(expression.contains(filter), "{title}");
        }
    }
}

/// Promtool checks the expressions of panels as recording rules.
#[test]
fn expressions_of_the_dashboard_parse() {
    let rules = panel_expressions().into_iter().enumerate();
    let rules: Vec<_> = rules
        .map(|(index, expr)| json!({"record": format!("panel:{index}"), "expr": expr}))
        .collect();
    let count = rules.len();
    let directory = tempfile::tempdir().unwrap();
    let file = json!({"groups": [{"name": "panels", "rules": rules}]});
    fs::write(directory.path().join("panels.json"), file.to_string()).unwrap();
    let text = promtool(directory.path(), &["check", "rules", "--lint-fatal", "panels.json"]);
    assert!(text.contains(&format!("{count} rules found")), "{text}");
}

#[test]
fn dashboard_counts_nodes_and_shows_nothing_without_agents() {
    let mut tests = yaml(&read(repository().join("chart-tests/dashboard.yaml")));
    let panels = panels();
    for test in tests["tests"][0]["promql_expr_test"].as_array_mut().unwrap() {
        let panel = panels.iter().find(|panel| panel["title"] == test["expr"]).unwrap();
        test["expr"] = replace_variables(&panel["targets"][0]["expr"]).into();
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("tests.json"), tests.to_string()).unwrap();
    promtool(directory.path(), &["test", "rules", "tests.json"]);
}
