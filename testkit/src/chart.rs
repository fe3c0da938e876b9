//! Runs `helm` on the chart, or on a changed copy of the chart.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use serde_json::Value;
use tempfile::TempDir;

use crate::child::must;

pub fn chart() -> PathBuf {
    crate::repository().join("charts/linkerd2-cni")
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the files of a directory, sorted. Files of its subdirectories are not included.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.is_file());
    files.sort();
    assert!(!files.is_empty());
    files
}

pub fn ci_values() -> Vec<PathBuf> {
    files(&chart().join("ci"))
}

pub fn platforms() -> Vec<(String, PathBuf)> {
    let mut platforms = Vec::new();
    for path in files(&chart().join("platforms")) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        platforms.push((name, path));
    }
    platforms
}

/// Returns the files with this extension in a directory and in its subdirectories, sorted.
pub fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|end| end == extension) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Runs `helm`. Panics if helm is not installed, because a skipped test would prove nothing.
pub fn helm(arguments: &[&str]) -> Output {
    run("helm", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        // The tests must not reach a cluster.
        .env("KUBECONFIG", "/dev/null")
        // With fewer garbage collections, helm takes a tenth less time. It ends before it needs the
        // memory.
        .env("GOGC", "400")
        .output()
        .unwrap_or_else(|error| {
            panic!(
                "{program}: {error}: run `scripts/tools {program}` and put `scripts/tools --path` \
                 on PATH"
            )
        })
}

pub struct Render {
    chart: PathBuf,
    values: Vec<PathBuf>,
    templates: Option<String>,
    scratch: TempDir,
    kubernetes: String,
    apis: Vec<String>,
    namespace: &'static str,
    helm: &'static str,
}

impl Render {
    pub fn new() -> Self {
        Render {
            chart: chart(),
            values: Vec::new(),
            templates: None,
            scratch: tempfile::tempdir().unwrap(),
            kubernetes: "1.36.0".into(),
            apis: Vec::new(),
            namespace: "linkerd-cni",
            helm: "helm",
        }
    }

    /// Renders another chart.
    pub fn of(chart: &Path) -> Self {
        Render { chart: chart.into(), ..Render::new() }
    }

    pub fn helm_3(mut self) -> Self {
        self.helm = "helm3";
        self
    }

    pub fn kubernetes(mut self, version: &str) -> Self {
        self.kubernetes = version.into();
        self
    }

    pub fn apis(mut self, apis: Vec<String>) -> Self {
        self.apis = apis;
        self
    }

    pub fn namespace(mut self, name: &'static str) -> Self {
        self.namespace = name;
        self
    }

    pub fn templates(mut self, pattern: &str) -> Self {
        self.templates = Some(format!("--show-only={pattern}"));
        self
    }

    pub fn file(mut self, path: &Path) -> Self {
        self.values.push(path.into());
        self
    }

    /// Adds values as a file. The templates get whole numbers as floats then, because helm reads
    /// them so from a file.
    pub fn values(self, values: &Value) -> Self {
        let path = self.scratch.path().join(format!("{}.json", self.values.len()));
        fs::write(&path, values.to_string()).unwrap();
        self.file(&path)
    }

    /// Adds or replaces a file of the chart, in a copy of the chart.
    pub fn with_file(mut self, name: &str, text: &str) -> Self {
        let copy = self.scratch.path().join("linkerd2-cni");
        if self.chart != copy {
            must(Command::new("cp").arg("-r").arg(&self.chart).arg(&copy));
            self.chart = copy;
        }
        fs::write(self.chart.join(name), text).unwrap();
        self
    }

    /// Runs a command of helm on the chart. Returns its stdout, or its stderr if it fails.
    fn run(&self, command: &[&str]) -> Result<String, String> {
        let mut arguments = command.to_vec();
        arguments.extend(["linkerd-cni", self.chart.to_str().unwrap()]);
        arguments.extend(["--namespace", self.namespace]);
        arguments.extend(self.templates.as_deref());
        // The outputs are kept, because many tests render the same values, and each start of helm
        // takes a tenth of a second.
        static OUTPUTS: Mutex<BTreeMap<String, Result<String, String>>> =
            Mutex::new(BTreeMap::new());
        let contents: Vec<_> = self.values.iter().map(read).collect();
        let key = format!("{} {arguments:?} {contents:?}", self.helm);
        if let Some(output) = OUTPUTS.lock().unwrap().get(&key) {
            return output.clone();
        }
        for values in &self.values {
            arguments.extend(["--values", values.to_str().unwrap()]);
        }
        let output = run(self.helm, &arguments);
        let result = if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(String::from_utf8(output.stderr).unwrap())
        };
        OUTPUTS.lock().unwrap().insert(key, result.clone());
        result
    }

    pub fn text(&self) -> Result<String, String> {
        let apis = self.apis.join(",");
        self.run(&["template", "--kube-version", &self.kubernetes, "--api-versions", &apis])
    }

    pub fn notes(&self) -> String {
        let text = self.run(&["install", "--dry-run=client"]).unwrap();
        text.split_once("NOTES:\n").expect("no notes").1.to_string()
    }

    pub fn objects(&self) -> Objects {
        Objects::parse(&self.text().unwrap_or_else(|error| panic!("{error}")))
    }
}

pub struct Objects(pub Vec<Value>);

impl Objects {
    pub fn parse(text: &str) -> Objects {
        let documents = text.split("\n---\n").filter(|document| document.contains("kind:"));
        Objects(documents.map(|document| yaml(document.trim_start_matches("---\n"))).collect())
    }

    pub fn get(&self, kind: &str) -> &Value {
        let mut found = self.0.iter().filter(|object| object["kind"] == kind);
        let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
        assert!(found.next().is_none(), "more than one {kind}");
        object
    }

    pub fn get_by_name(&self, kind: &str, name: &str) -> &Value {
        for object in &self.0 {
            if object["kind"] == kind && object["metadata"]["name"] == name {
                return object;
            }
        }
        panic!("no {kind} {name}")
    }

    pub fn has_kind(&self, kind: &str) -> bool {
        self.0.iter().any(|object| object["kind"] == kind)
    }

    /// Returns the value of an environment variable. Null if the container has no such variable.
    pub fn variable(&self, container: &str, name: &str) -> Value {
        let env = self.container(container)["env"].as_array().unwrap();
        let found = env.iter().find(|variable| variable["name"] == name);
        found.map_or(Value::Null, |variable| variable["value"].clone())
    }

    pub fn pod(&self) -> &Value {
        &self.get("DaemonSet")["spec"]["template"]
    }

    pub fn container(&self, name: &str) -> &Value {
        let containers = self.pod()["spec"]["containers"].as_array().unwrap();
        let found = containers.iter().find(|c| c["name"] == name);
        found.unwrap_or_else(|| panic!("no container {name}"))
    }

    /// Returns the plugin entry.
    pub fn plugin(&self) -> Value {
        let config = self.get_by_name("ConfigMap", "linkerd-cni-config");
        let text = &config["data"]["cni_network_config"];
        serde_json::from_str(text.as_str().unwrap()).unwrap()
    }

    pub fn checksum(&self) -> &Value {
        &self.pod()["metadata"]["annotations"]["checksum/config"]
    }
}

/// Reads values that are written as YAML without the outer braces, such as `chained: false,
/// disableIPv6: auto`.
pub fn values(text: &str) -> Value {
    yaml(&format!("{{{text}}}"))
}

pub fn render(values: Value) -> Objects {
    Render::new().values(&values).objects()
}
