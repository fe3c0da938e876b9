//! The commands in the pages: each is shown to work, or says why it cannot run here.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::json;

use crate::commands::{self, Shown};
use crate::helm::{Objects, chart, helm, platforms, read};

/// Flags of Helm with an argument that `helm template` needs.
const WITH_ARGUMENT: [&str; 9] = [
    "-n",
    "--namespace",
    "-f",
    "--values",
    "--set",
    "--set-string",
    "--set-json",
    "-s",
    "--set-file",
];

#[test]
fn every_command_of_a_page_is_shown_to_work_or_says_why_it_cannot_run() {
    let all = commands::commands();
    for (beginning, _) in commands::rows() {
        let mut texts = all.iter().map(|command| format!("{} ", command.text));
        assert!(texts.any(|text| text.starts_with(beginning)), "no page has {beginning}");
    }
    let unknown: Vec<_> = all.iter().filter(|command| command.shown().is_none()).collect();
    assert!(unknown.is_empty(), "add rows to testkit/src/documented.rs for {unknown:#?}");
    for page in commands::pages() {
        let text = read(&page);
        for language in ["bash", "shell", "console", "sh-session"] {
            let other = text.contains(&format!("```{language}\n"));
            assert!(!other, "{}: use ```sh instead of ```{language}", page.display());
        }
    }
}

#[test]
fn every_test_that_shows_a_command_exists() {
    let mut sources = String::new();
    for directory in ["src/tests", "chart-tests"] {
        let mut found = Vec::new();
        crate::pages::sources(&testkit::repository().join(directory), &mut found);
        sources.extend(found.into_iter().map(read));
    }
    let steps = read(testkit::repository().join("scripts/test"));
    for (beginning, shown) in commands::rows() {
        if let Shown::By(name) = shown {
            let is_test = sources.contains(&format!("\n#[test]\nfn {name}()"));
            let is_step = steps.contains(&format!("plan {name} "));
            assert!(is_test || is_step, "{beginning}: no test and no step {name}");
        }
    }
}

#[test]
fn the_chart_accepts_the_values_and_helm_the_flags_of_every_command() {
    let mut rendered = commands::commands();
    rendered.retain(|command| command.shown() == Some(Shown::Rendered));
    assert!(rendered.len() > 15, "{rendered:?}");
    let mut help = BTreeMap::new();
    for command in rendered {
        let words = words(&command.text);
        let help = help
            .entry(words[0].clone())
            .or_insert_with(|| String::from_utf8(helm(&[&words[0], "--help"]).stdout).unwrap());
        render(&command.page, &words, help);
    }
}

#[test]
fn the_command_of_the_platforms_page_renders_with_every_preset_that_it_names() {
    let page = read(testkit::repository().join("docs/platforms.md"));
    let all = commands::commands();
    let installs = |command: &&commands::Command| {
        command.page == "docs/platforms.md" && command.text.ends_with("platform=eks")
    };
    let command = all.iter().find(installs).unwrap();
    for (platform, _) in platforms() {
        let row = page.lines().any(|line| {
            let mut cells = line.split(" | ").skip(1);
            cells.next().is_some_and(|cell| cell.contains(&format!("`{platform}`")))
        });
        assert!(row, "no row names {platform}");
        let text = command.text.replace("platform=eks", &format!("platform={platform}"));
        render(&command.page, &words(&text), " --wait ");
    }
}

#[test]
fn the_matrix_lists_each_row() {
    let output =
        Command::new(testkit::repository().join("scripts/matrix")).arg("--list").output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let rows = fs::read_to_string(testkit::repository().join("scripts/matrix.d/rows")).unwrap();
    let names: Vec<_> = rows.lines().filter_map(|line| line.strip_prefix('[')).collect();
    assert_eq!(listed.lines().count(), names.len());
    for name in names {
        assert!(listed.contains(name.trim_end_matches(']')), "{name}: {listed}");
    }
}

/// The words of a `helm` command, as the shell splits them, up to a pipe or a redirection.
fn words(text: &str) -> Vec<String> {
    let ends = [" | ", " >", " && "].iter().filter_map(|end| text.find(end));
    let text = &text[..ends.min().unwrap_or(text.len())];
    let script = format!("helm() {{ printf '%s\\n' \"$@\"; }}; {text}");
    let output = Command::new("bash").args(["-euc", &script]).output().unwrap();
    assert!(output.status.success(), "{text}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Renders the chart as the command would, and checks that Helm knows the command's other flags.
fn render(page: &str, words: &[String], help: &str) {
    let verb = words[0].as_str();
    let scratch = tempfile::tempdir().unwrap();
    let values = scratch.path().join("my-values.yaml");
    // The values of the release, which the command takes from a file.
    let own = json!({"startupTaint": "a", "repairController": {"enabled": true}});
    fs::write(&values, own.to_string()).unwrap();
    let mut arguments = vec!["template".to_owned(), "--kube-version=1.36.0".to_owned()];
    let mut words = words[1..].iter();
    while let Some(word) = words.next() {
        let mut word = word.clone();
        if word == "charts/linkerd2-cni" || word == "." {
            word = chart().display().to_string();
        }
        let is_flag = word.starts_with('-');
        if is_flag && !WITH_ARGUMENT.contains(&word.as_str()) {
            let name = word.split('=').next().unwrap();
            assert!(help.contains(&format!(" {name} ")), "{page}: helm {verb} has no {name}");
            continue;
        }
        arguments.push(word.clone());
        if is_flag {
            let argument =
                words.next().unwrap_or_else(|| panic!("{page}: {word} needs an argument"));
            let is_file = argument.ends_with(".yaml") && word == "-f";
            arguments.push(if is_file { values.display().to_string() } else { argument.clone() });
        }
    }
    let output = helm(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{page}: helm {arguments:?}: {error}");
    let text = String::from_utf8(output.stdout).unwrap();
    Objects::parse(&text);
}
