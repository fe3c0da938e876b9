//! A small committed repository with copies of this project's scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{must, repository};

pub struct Checkout(TempDir);

impl Checkout {
    /// An empty repository with these scripts.
    pub fn with(scripts: &[&str]) -> Checkout {
        let checkout = Checkout(TempDir::new().unwrap());
        for name in scripts {
            fs::create_dir_all(checkout.path(name).parent().unwrap()).unwrap();
            fs::copy(repository().join(name), checkout.path(name)).unwrap();
        }
        checkout.git(&["init", "--quiet"]);
        checkout
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, and its directory if that is missing.
    pub fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs git and returns what it prints.
    pub fn git(&self, args: &[&str]) -> String {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
        let output = must(Command::new("git").current_dir(&self.0).args(identity).args(args));
        String::from_utf8(output).unwrap().trim_end().to_owned()
    }

    pub fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "A change"]);
    }
}

impl AsRef<Path> for Checkout {
    fn as_ref(&self) -> &Path {
        self.0.path()
    }
}
