//! Fake docker, kind, kubectl and helm that record their calls.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

pub const USERS_KUBECONFIG: &str = "/users/own/kubeconfig";
pub const USERS_HELM: &str = "/users/own/helm";
const SYSTEM: &str = "awk bash basename cat chmod cp cut date dirname env find flock grep head id ls mkdir mktemp \
     mv readlink rm sed sh sha256sum sleep sort tail touch tr uname xargs";
const RECORD: &str = include_str!("bin/record");
const KIND: &str = include_str!("bin/kind");
/// Prints the objects of a list from the file that is named after the list's first kind. A list is
/// recognized by JSONPath's `range`.
const KUBECTL: &str = include_str!("bin/kubectl");
/// Hides a real one-node cluster of this machine, which `--down` could remove.
const HIDE_ONE_NODE_CLUSTER: &str = include_str!("bin/hide");
const HELM: &str = r#"[[ $1 != install || $2 != --help ]] || echo "  --labels stringToString"
"#;

pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/quickstart")
}

pub struct Fakes {
    home: TempDir,
}

/// What a run of the script printed, and which fakes it called.
#[derive(Debug)]
pub struct Ran {
    pub success: bool,
    pub said: String,
    pub calls: Vec<String>,
}

impl Ran {
    /// Calls that may change a cluster, docker's images or helm's settings.
    pub fn changes(&self) -> Vec<&str> {
        let reading_verbs = [" get ", " config ", " info ", " version ", " --help ", " wait "];
        let mut calls: Vec<&str> = self.calls.iter().map(String::as_str).collect();
        calls.retain(|call| !reading_verbs.iter().any(|verb| call.contains(verb)));
        calls
    }

    /// Returns the first call that contains this text. Fails if there is none.
    pub fn call(&self, part: &str) -> &str {
        let found = self.calls.iter().find(|call| call.contains(part));
        found.unwrap_or_else(|| panic!("no call {part}: {self:?}"))
    }
}

impl Fakes {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        for directory in ["bin", "objects"] {
            fs::create_dir(home.path().join(directory)).unwrap();
        }
        fs::write(home.path().join("clusters"), "").unwrap();
        let fakes = Fakes { home };
        for name in SYSTEM.split_whitespace() {
            let mut program = Path::new("/usr/bin").join(name);
            if !program.exists() {
                program = Path::new("/bin").join(name);
            }
            assert!(program.exists(), "{name} is missing");
            std::os::unix::fs::symlink(program, fakes.path("bin").join(name)).unwrap();
        }
        for (name, body) in [("kind", KIND), ("kubectl", KUBECTL), ("helm", HELM)] {
            fakes.program(name, body);
        }
        for name in ["docker", "cargo", "go", "apt-get"] {
            fakes.program(name, "");
        }
        fakes
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The cache directory. Its path has a space, which the script has to quote.
    pub fn cache(&self) -> PathBuf {
        self.path("the cache")
    }

    /// Replaces a program by a script that records its call and runs `body`.
    pub fn program(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        let _ = fs::remove_file(&path);
        let record = if ["uname", "id"].contains(&name) { "" } else { RECORD };
        testkit::write_program(&path, format!("#!/bin/bash\n{record}{body}\n"));
    }

    pub fn without(self, names: &[&str]) -> Self {
        for name in names {
            let _ = fs::remove_file(self.path("bin").join(name));
        }
        self
    }

    pub fn object(&self, list: &str, line: &str) {
        append(&self.path("objects").join(list), line);
    }

    pub fn kind_cluster(&self, name: &str) {
        append(&self.path("clusters"), name);
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        let script = script();
        self.shell("bash", &[&[script.to_str().unwrap()], arguments].concat())
    }

    /// Runs the script on a machine with this `/etc/os-release`.
    pub fn run_on_system(&self, os_release: &str, arguments: &[&str]) -> Ran {
        fs::write(self.path("os-release"), os_release).unwrap();
        let inside = "/bin/mount --bind \"$FAKES/os-release\" /etc/os-release && PATH=$FAKES/bin exec bash \"$@\"";
        let script = script();
        let fixed = ["--mount", "/bin/bash", "-c", inside, "bash", script.to_str().unwrap()];
        self.command("/usr/bin/unshare", &[&fixed, arguments].concat())
    }

    pub fn shell(&self, shell: &str, arguments: &[&str]) -> Ran {
        self.command(&format!("/bin/{shell}"), arguments)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Ran {
        let _ = fs::remove_file(self.path("calls"));
        let output = Command::new("/usr/bin/unshare")
            .args(["--mount", "/bin/bash", "-c", HIDE_ONE_NODE_CLUSTER])
            .args(["bash", program])
            .args(arguments)
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.home.path())
            .env("FAKES", self.home.path())
            .env("LINKERD2_CNI_CACHE", self.cache())
            .env("KUBECONFIG", USERS_KUBECONFIG)
            .env("HELM_REPOSITORY_CONFIG", USERS_HELM)
            .env("HELM_PLUGINS", USERS_HELM)
            .env("HELM_DRIVER", USERS_HELM)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        Ran {
            success: output.status.success(),
            said: text(&output.stdout) + &text(&output.stderr),
            calls: calls.lines().map(str::to_owned).collect(),
        }
    }
}

fn append(path: &Path, line: &str) {
    let before = fs::read_to_string(path).unwrap_or_default();
    fs::write(path, format!("{before}{line}\n")).unwrap();
}
