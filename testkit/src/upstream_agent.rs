//! A stand-in for upstream's agent, `internal/cni` of
//! <https://github.com/linkerd/linkerd2-proxy-init>.
//!
//! When the stand-in starts, it writes the plugin binary and the kubeconfig, and merges its plugin
//! entry into every `.conf` and `.conflist` of the CNI net dir. Then it merges its entry into each
//! such file that another program writes. It notices no other change: neither a deleted file, nor
//! another binary or kubeconfig. After an error it ends, and kubelet starts it again. On SIGTERM it
//! removes the binary, the kubeconfig and its entries, in this order.
//!
//! The kubeconfig is a given text: the stand-in does not watch the directory of the ServiceAccount.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::{Value, json};

use crate::repeated::Repeated;

/// Longest wait for an event, in milliseconds. After each wait the agent checks whether it has to
/// stop.
const POLL_MS: u8 = 2;
/// Time until kubelet starts the agent again after an error.
const RESTART: Duration = Duration::from_millis(1);

/// What upstream's agent writes, and where.
pub struct UpstreamFiles {
    pub plugin_path: PathBuf,
    pub plugin: Vec<u8>,
    /// In the CNI net dir.
    pub kubeconfig_path: PathBuf,
    pub kubeconfig: String,
    pub entry: Value,
}

/// A running stand-in. Dropping it has the effect of SIGTERM.
pub struct UpstreamAgent(Option<Repeated<State>>);

struct State {
    files: UpstreamFiles,
    inotify: Option<Inotify>,
    /// The network configs that this process wrote, with the text. Upstream keeps the SHA-256 of
    /// each.
    written: BTreeMap<PathBuf, String>,
    is_over: bool,
}

impl UpstreamAgent {
    /// Starts the stand-in, and waits until the network configs have the plugin entry.
    pub fn start(files: UpstreamFiles) -> UpstreamAgent {
        UpstreamAgent::start_until(files, || false)
    }

    /// Starts the stand-in, which gets SIGTERM when `is_over` returns true, or when the value is
    /// dropped.
    pub fn start_until(
        files: UpstreamFiles,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> UpstreamAgent {
        let mut state = State { files, inotify: None, written: BTreeMap::new(), is_over: false };
        state.start().unwrap();
        UpstreamAgent(Some(Repeated::start(Duration::ZERO, state, move |state| {
            if state.is_over {
                std::thread::sleep(RESTART);
            } else if is_over() {
                state.uninstall();
            } else if let Err(error) = state.handle_events() {
                tracing::info!("upstream's agent ends with status 1 and is started again: {error}");
                std::thread::sleep(RESTART);
                state.inotify = None;
            }
        })))
    }

    /// Ends the stand-in as SIGKILL would: its files stay in place.
    pub fn kill(mut self) {
        self.stop_thread();
    }

    /// Ends the stand-in's thread, and returns its state. `None`: the thread has already ended.
    fn stop_thread(&mut self) -> Option<State> {
        let thread = self.0.take()?;
        Some(thread.finish())
    }
}

impl Drop for UpstreamAgent {
    fn drop(&mut self) {
        if let Some(mut state) = self.stop_thread()
            && !state.is_over
        {
            state.uninstall();
        }
    }
}

impl State {
    fn start(&mut self) -> io::Result<()> {
        self.written.clear();
        replace(&self.files.plugin_path, &self.files.plugin, 0o755)?;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        // The events CREATE, RENAME and WRITE of the library fsnotify.
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MODIFY;
        let net_dir = self.net_dir();
        inotify.add_watch(&net_dir, events)?;
        replace(&self.files.kubeconfig_path, &self.files.kubeconfig, 0o644)?;
        let mut paths = Vec::new();
        for entry in fs::read_dir(net_dir)? {
            paths.push(entry?.path());
        }
        paths.sort();
        for path in paths {
            self.merge(&path)?;
        }
        self.inotify = Some(inotify);
        Ok(())
    }

    fn net_dir(&self) -> PathBuf {
        self.files.kubeconfig_path.parent().unwrap().to_owned()
    }

    /// Starts the stand-in again after an error. Otherwise waits for events, at most for
    /// [`POLL_MS`].
    fn handle_events(&mut self) -> io::Result<()> {
        let Some(inotify) = &self.inotify else {
            return self.start();
        };
        poll(&mut [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)], POLL_MS)?;
        let events = match inotify.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        for event in events {
            if let Some(name) = event.name {
                self.merge(&self.net_dir().join(name))?;
            }
        }
        Ok(())
    }

    /// Merges the entry into the file, unless the file is no network config, or has the content
    /// that this process wrote last.
    fn merge(&mut self, path: &Path) -> io::Result<()> {
        let extension = path.extension().unwrap_or_default();
        if extension != "conf" && extension != "conflist" {
            return Ok(());
        }
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if self.written.get(path) == Some(&text) {
            return Ok(());
        }
        let merged = chained(&text, &self.files.entry)?;
        let target = path.with_extension("conflist");
        replace(&target, &merged, 0o644)?;
        if target != path {
            fs::remove_file(path)?;
        }
        self.written.insert(target, merged);
        Ok(())
    }

    /// Removes binary, kubeconfig and entries. Continues after an error, as upstream's agent does.
    fn uninstall(&mut self) {
        self.is_over = true;
        for path in [&self.files.plugin_path, &self.files.kubeconfig_path] {
            let _ = fs::remove_file(path);
        }
        for path in self.written.keys() {
            if let Ok(text) = fs::read_to_string(path)
                && let Ok(unchained) = unchained(&text)
            {
                let _ = fs::write(path, unchained);
            }
        }
    }
}

/// Returns the network config with the plugin entry at the end. The first plugin entry that the
/// config already has is removed.
pub fn chained(text: &str, entry: &Value) -> io::Result<String> {
    let mut config: Value = serde_json::from_str(text)?;
    if config.get("type").is_some() {
        config.as_object_mut().unwrap().remove("cniVersion");
        config = json!({"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [config]});
    }
    let plugins = remove_entry(&mut config)?;
    plugins.push(entry.clone());
    Ok(render(config))
}

/// Returns the network config without the first plugin entry.
pub fn unchained(text: &str) -> io::Result<String> {
    let mut config: Value = serde_json::from_str(text)?;
    remove_entry(&mut config)?;
    Ok(render(config))
}

/// Removes the first plugin entry, if there is one. Returns the plugins of the config.
fn remove_entry(config: &mut Value) -> io::Result<&mut Vec<Value>> {
    let Some(plugins) = config.get_mut("plugins").and_then(Value::as_array_mut) else {
        return Err(io::Error::other("cannot determine plugins from existing cni configuration"));
    };
    if let Some(index) = plugins.iter().position(|plugin| plugin["type"] == "linkerd-cni") {
        plugins.remove(index);
    }
    Ok(plugins)
}

/// Renders JSON as Go's `json.MarshalIndent` does.
fn render(mut config: Value) -> String {
    config.sort_all_objects();
    let text = serde_json::to_string_pretty(&config).unwrap();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Writes the file under the name `NAME.install`, and renames it to `NAME`.
fn replace(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> io::Result<()> {
    let mut temp_path = path.as_os_str().to_owned();
    temp_path.push(".install");
    fs::write(&temp_path, content)?;
    fs::set_permissions(&temp_path, fs::Permissions::from_mode(mode))?;
    fs::rename(temp_path, path)
}
