//! `scripts/maintainers/sign` with throw-away keys.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::{must, printed, release, repository};

/// A signed copy of the release, with a gpg key and an ECDSA key.
struct Signed {
    work: TempDir,
}

const KEY: &str = "throw-away@localhost";

impl Signed {
    fn new() -> Self {
        let signed = Signed { work: TempDir::new().unwrap() };
        // gpg rejects a directory that others can read, and a socket's path above 107 bytes.
        fs::create_dir(signed.path("gpg")).unwrap();
        fs::set_permissions(signed.path("gpg"), fs::Permissions::from_mode(0o700)).unwrap();
        must(Command::new("cp").arg("-r").arg(release()).arg(signed.path("release")));
        must(
            &mut signed
                .gpg(&format!("--passphrase= --quick-generate-key {KEY} rsa2048 sign never")),
        );
        let private = signed.path("key.pem").display().to_string();
        let public = signed.path("key.pub").display().to_string();
        for command in [
            format!("ecparam -genkey -name prime256v1 -noout -out {private}"),
            format!("ec -pubout -in {private} -out {public}"),
        ] {
            must(Command::new("openssl").args(command.split(' ')));
        }
        must(&mut signed.sign_with(KEY));
        must(signed.gpg("--export --output").arg(signed.path("pubring.gpg")).arg(KEY));
        signed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path("release").join(name)
    }

    fn gpg(&self, args: &str) -> Command {
        let mut gpg = Command::new("gpg");
        gpg.env("GNUPGHOME", self.path("gpg")).arg("--batch").args(args.split(' '));
        gpg
    }

    /// Ends the agent that gpg started, which remembers passphrases.
    fn end_agent(&self) {
        let mut gpgconf = Command::new("gpgconf");
        let _ = gpgconf.env("GNUPGHOME", self.path("gpg")).args(["--kill", "all"]).status();
    }

    fn sign_with(&self, key: &str) -> Command {
        let mut sign = Command::new(repository().join("scripts/maintainers/sign"));
        sign.env("GNUPGHOME", self.path("gpg")).arg(self.path("release"));
        sign.args(["--gpg-key", key, "--pem-key"]).arg(self.path("key.pem"));
        sign
    }

    fn chart(&self) -> PathBuf {
        let files = fs::read_dir(self.path("release")).unwrap().map(|entry| entry.unwrap().path());
        files.into_iter().find(|path| path.extension().is_some_and(|end| end == "tgz")).unwrap()
    }

    fn verify_chart(&self) -> Output {
        let mut helm = Command::new("helm");
        helm.arg("verify").arg(self.chart()).arg("--keyring").arg(self.path("pubring.gpg"));
        helm.output().unwrap()
    }

    /// Verifies SHA256SUMS with the gpg key, and with the ECDSA key.
    fn verify_checksums(&self) -> [Output; 2] {
        let signature = self.path("signature");
        let mut base64 = Command::new("base64");
        base64.arg("-d").arg(self.file("SHA256SUMS.sig"));
        fs::write(&signature, base64.output().unwrap().stdout).unwrap();
        let mut gpg = self.gpg("--verify");
        let mut openssl = Command::new("openssl");
        openssl.args(["dgst", "-sha256", "-verify"]).arg(self.path("key.pub"));
        openssl.arg("-signature").arg(signature).arg(self.file("SHA256SUMS"));
        gpg.arg(self.file("SHA256SUMS.asc")).arg(self.file("SHA256SUMS"));
        [gpg.output().unwrap(), openssl.output().unwrap()]
    }
}

impl Drop for Signed {
    fn drop(&mut self) {
        self.end_agent();
    }
}

/// Changes one bit in the middle of a file.
fn damage(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
}

#[test]
fn signatures_are_valid_until_a_byte_changes() {
    let signed = Signed::new();
    // A fingerprint names the key, too.
    let keys = must(&mut signed.gpg(&format!("--with-colons --list-keys {KEY}")));
    let fingerprint = keys.lines().find_map(|line| line.strip_prefix("fpr:::::::::")).unwrap();
    must(&mut signed.sign_with(fingerprint.trim_end_matches(':')));
    let output = signed.verify_chart();
    assert!(output.status.success(), "{}", printed(&output));
    for output in signed.verify_checksums() {
        assert!(output.status.success(), "{}", printed(&output));
    }

    damage(&signed.chart());
    assert!(!signed.verify_chart().status.success());
    damage(&signed.file("SHA256SUMS"));
    for output in signed.verify_checksums() {
        assert!(!output.status.success(), "{}", printed(&output));
    }
    // A folder that was changed is not signed again.
    let output = signed.sign_with(KEY).output().unwrap();
    assert!(!output.status.success());
    assert!(printed(&output).contains("differs from its SHA256SUMS"), "{}", printed(&output));
}

#[test]
fn wrong_passphrase_is_not_reported_as_a_missing_key() {
    let signed = Signed::new();
    let locked = "locked@localhost";
    let create = format!("--quick-generate-key {locked} rsa2048 sign never");
    must(&mut signed.gpg(&format!("--pinentry-mode loopback --passphrase right {create}")));
    signed.end_agent();
    fs::write(signed.path("wrong"), "wrong\n").unwrap();
    let output =
        signed.sign_with(locked).env("PASSPHRASE_FILE", signed.path("wrong")).output().unwrap();
    assert!(!output.status.success());
    assert!(printed(&output).contains("PASSPHRASE_FILE names the file"), "{}", printed(&output));
    assert!(!printed(&output).contains("no secret key"), "{}", printed(&output));
}
