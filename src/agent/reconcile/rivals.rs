//! Another program that writes what we write as often as we do: an agent of another release
//! on the same node. Each further write waits longer, as in a [fight], but that is no reason
//! not to be ready while all is right: the next release would wait for it in vain.
//!
//! [fight]: crate::agent::contention

use std::path::Path;
use std::time::Instant;

use super::{BINARY, KUBECONFIG, Pass, Reconciler};

impl Reconciler {
    /// Whether `path` was written with `content` so often that it is left alone for a while.
    pub(super) fn is_held(
        &self,
        subject: &str,
        path: &Path,
        content: &str,
        pass: &mut Pass,
    ) -> bool {
        let Some(until) = self.rivals.hold(subject, content, Instant::now()) else {
            return false;
        };
        pass.look_again(until);
        pass.problem(subject, rival(path));
        true
    }

    /// Somebody who writes what we wrote is named also while all is right.
    pub(super) fn doubt_rivals(&self, pass: &mut Pass) {
        for (subject, over) in self.rivals.on(Instant::now()) {
            let path = match subject {
                KUBECONFIG => self.settings.kubeconfig(),
                BINARY => self.settings.bin_dir.clone(),
                list => self.settings.net_dir.join(list),
            };
            pass.fight = true;
            pass.look_again(over);
            pass.doubts.insert(subject.to_owned(), rival(&path));
        }
    }
}

/// What to do about somebody who writes `path` as often as we do.
fn rival(path: &Path) -> String {
    format!(
        "what was written to {} is soon another, again and again: stop the other program that \
         writes there, such as a second agent with another image or service account",
        path.display()
    )
}
