//! The networks' configurations: what the plan wants of them, and who works against it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tracing::info;

use super::Reconciler;
use super::pass::{BIN_DIR, CONFLIST, LEFTOVERS, Pass};
use super::step::{content, take};
use crate::agent::platforms;
use crate::agent::status::Status;
use crate::agent::uninstall;
use crate::agent::uninstall::leftovers;
use crate::conflist::PLUGIN;
use crate::conflist::net_dir;
use crate::conflist::net_dir::Found;
use crate::conflist::plan;
use crate::conflist::saved_state::Journal;
use crate::files;
use crate::kube::event::{EventType, Message};

impl Reconciler {
    /// Chains the plugin where it belongs, and takes it out where not; writes only if the
    /// rest is `whole`.
    pub(super) fn keep_conflists(
        &mut self,
        pass: &mut Pass,
        whole: bool,
    ) -> Result<(), files::Error> {
        let settings = Arc::clone(&self.settings);
        if whole && !self.tidied {
            let left = leftovers::tidy(&settings);
            self.tidied = left.is_empty();
            let left: Vec<String> = left.iter().map(ToString::to_string).collect();
            if !left.is_empty() {
                pass.problem(LEFTOVERS, left.join("; "));
            }
        }
        let dir = &settings.net_dir;
        let found = net_dir::scan(dir, &settings.kubeconfig_name)?;
        let (mut journal, why) = Journal::load(dir);
        if let Some(why) = why {
            pass.problem("journal", why);
        }
        let mut plan = plan::chain(&self.mode, &found, &self.entry, &journal);
        for (name, why) in plan.skipped {
            pass.problem(&dir.join(&name).display().to_string(), why);
        }
        match plan.bare {
            Some(why) if found.is_empty() => {
                let remedy = platforms::no_network(&settings);
                pass.problem(CONFLIST, format!("{why}; {remedy}"));
            }
            Some(why) => pass.problem(CONFLIST, why),
            None => {}
        }
        if let Some(why) = plan.doubt {
            pass.doubts.insert(CONFLIST.to_owned(), why);
        }
        self.doubt_bin_dir(&found, pass);
        if settings.require_network_plugins
            && !self.runtime_finds_plugin
            && let Some(why) = pass.doubts.remove(BIN_DIR)
        {
            let why = format!("not chained, as pods could not start any more: {why}");
            pass.problem(CONFLIST, why);
            return Ok(());
        }
        if !whole {
            return Ok(());
        }
        self.lists.extend(plan.lists);
        if journal.unread {
            // It says what to give back.
            plan.undo.clear();
        }
        for step in plan.steps {
            self.repairs(CONFLIST);
            let before = content(&found, step.source()).map_or("", |before| &before.text);
            let now = Instant::now();
            // With another entry of ours, pods are not bare.
            let rival = plan::names_us(before);
            let fights = match rival {
                true => &mut self.rivals,
                false => &mut self.fights,
            };
            if let Some(until) = fights.hold(step.list(), before, now) {
                pass.look_again(until);
                continue;
            }
            match take(dir, &found, &step, &mut journal) {
                Ok(()) => {
                    pass.wrote = true;
                    if fights.wrote(step.list(), before, now) && !rival {
                        Status::count(&self.status.fights);
                        self.tell(&dir.join(step.list()));
                    }
                    Status::count(&self.status.conflist_writes);
                    // What was wrong is put right, and the next look says whether it is.
                    pass.problems.remove(CONFLIST);
                    info!("Created CNI config {}", dir.join(step.list()).display());
                }
                Err(files::Error::Raced { .. }) => pass.wrote = true,
                Err(error) => pass.problem(&dir.join(step.list()).display().to_string(), error),
            }
        }
        for undo in plan.undo {
            let before = |name: &str| content(&found, name);
            match uninstall::take(dir, &undo, before) {
                Ok(()) => {
                    pass.wrote = true;
                    Status::count(&self.status.conflist_writes);
                    info!("Removed {PLUGIN} from {}", dir.join(undo.list()).display());
                    journal.forget(undo.list(), dir)?;
                }
                Err(files::Error::Raced { .. }) => pass.wrote = true,
                Err(error) => pass.problem(&dir.join(undo.list()).display().to_string(), error),
            }
        }
        for (list, over) in self.fights.on(Instant::now()) {
            pass.fight = true;
            pass.look_again(over);
            pass.problem(CONFLIST, remedy(&dir.join(list)));
        }
        Ok(())
    }

    /// Says whether a runtime that loads what was `found` is likely to find our plugin.
    ///
    /// It does find the plugin if an earlier agent, of upstream or not, chained it from this
    /// bin dir: it started this agent's own pod through that chain.
    fn doubt_bin_dir(&mut self, found: &[Found], pass: &mut Pass) {
        let loaded = plan::loaded(found);
        let doubt = loaded.and_then(|loaded| platforms::no_plugins(&self.settings, loaded));
        let value = doubt.is_some().into();
        self.status.foreign_bin_dir.store(value, Ordering::Relaxed);
        if self.had_binary || doubt.is_none() {
            self.runtime_finds_plugin |= plan::is_chained(&self.mode, found);
        }
        if let Some(why) = doubt {
            pass.doubts.insert(BIN_DIR.to_owned(), why);
        }
    }

    /// Says on our pod that somebody fights over `list`.
    fn tell(&self, list: &Path) {
        self.api.tell(Message {
            kind: EventType::Warning,
            reason: "LinkerdCNIFight",
            action: "Chaining",
            note: remedy(list),
        });
    }
}

/// What to do about somebody who fights over `list`.
fn remedy(list: &Path) -> String {
    format!(
        "another program takes linkerd-cni out of {} again and again, so pods may start without \
         redirection: with Cilium set cni.exclusive=false, else stop that program from \
         restoring the file",
        list.display()
    )
}
