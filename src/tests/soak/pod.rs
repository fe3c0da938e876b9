//! One pod of the load: what it must do, and what it has done so far.

use std::time::{Duration, Instant};

use crate::ledger::{Invariant, Ledger};
use crate::sandbox::{Rules, Sandbox};
use crate::windows::{Cause, Windows};

/// Bounds beyond a pod's normal time, on a machine with two processors.
const UNMESHED: Duration = Duration::from_secs(45);
const MESHED: Duration = Duration::from_secs(90);
/// Bound of a deletion. Kubelet retries a failed DEL after up to a minute.
const END: Duration = Duration::from_secs(120);
/// Bound of the repair of a pod that started while another writer had removed the plugin entry.
const REPAIR: Duration = Duration::from_secs(90);
/// Time between two looks at the rules of a pod.
const LOOK: Duration = Duration::from_secs(4);

/// Kinds of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unmeshed,
    /// Meshed, with the proxy injector's mark.
    Injected,
    /// Meshed, without the mark: the plugin needs the API server.
    Manual,
}

/// Where kubelet learns of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    ApiServer,
    /// A file on the node.
    File,
}

/// What the load shares with its pods.
pub struct Context {
    pub ledger: Ledger,
    pub windows: Windows,
    /// The longest start of an unmeshed pod without the plugin.
    pub normal: Duration,
}

/// A pod.
pub struct Pod {
    /// Its name, as the runtime has it.
    pub name: String,
    pub kind: Kind,
    pub source: Source,
    pub created: Instant,
    /// Whether it was created while the API server was down.
    pub without_api: bool,
    pub sandbox: Option<Sandbox>,
    pub answered: Option<Instant>,
    pub deleted: Option<Instant>,
    /// Whether it started without the plugin entry. Then it is to be repaired by this time.
    pub repair_by: Option<Instant>,
    pub repaired: bool,
    /// Number of times that its rules were listed.
    pub looks: usize,
    looked: Instant,
    late: bool,
    bare: bool,
}

impl Pod {
    pub fn new(name: String, kind: Kind, source: Source, without_api: bool) -> Pod {
        let now = Instant::now();
        Pod {
            name,
            kind,
            source,
            created: now,
            without_api,
            sandbox: None,
            answered: None,
            deleted: None,
            repair_by: None,
            repaired: false,
            looks: 0,
            looked: now,
            late: false,
            bare: false,
        }
    }

    pub fn is_meshed(&self) -> bool {
        self.kind != Kind::Unmeshed
    }

    /// Takes note of the pod's sandbox, and checks the pod.
    pub fn observe(&mut self, found: Option<&Sandbox>, context: &Context) {
        if self.deleted.is_some() {
            return;
        }
        if let Some(sandbox) = found.filter(|found| self.sandbox.as_ref() != Some(*found)) {
            self.sandbox = Some(sandbox.clone());
            self.was_added(sandbox, context);
        }
        let Some(sandbox) = self.sandbox.clone() else {
            return self.check_start(context);
        };
        if self.looked.elapsed() > LOOK || self.answered.is_none() {
            self.check_response(&sandbox, context);
        }
        if self.looked.elapsed() > LOOK {
            self.check_rules(&sandbox, context);
        }
        self.check_start(context);
    }

    /// Checks the rules of a pod that is about to be deleted.
    pub fn observe_now(&mut self, context: &Context) {
        if let Some(sandbox) = self.sandbox.clone() {
            self.check_rules(&sandbox, context);
        }
    }

    /// Time since the creation, if nothing held the pod back.
    pub fn undisturbed(&self, context: &Context) -> Option<Duration> {
        let elapsed = self.created.elapsed();
        let outside = context.windows.elapsed_outside(self.held_by(), self.created);
        (outside >= elapsed).then_some(elapsed)
    }

    fn was_added(&mut self, sandbox: &Sandbox, context: &Context) {
        // ADD used a network config without the plugin entry. Only another writer may have caused that.
        let foreign = [Cause::Unchained, Cause::NoConflist];
        let is_foreign = foreign.iter().any(|cause| context.windows.since(*cause, self.created));
        if self.is_meshed() && !sandbox.has_entry && is_foreign {
            self.repair_by = Some(Instant::now() + REPAIR);
        }
        self.check_rules(sandbox, context);
    }

    /// Whether the pod waits for a repair. If it takes too long, that is a violation.
    fn awaits_repair(&mut self, context: &Context) -> bool {
        let Some(by) = self.repair_by.filter(|_| !self.repaired) else {
            return false;
        };
        // The repair controller needs the API server.
        let held =
            context.windows.is_open(Cause::ApiServer) || context.windows.is_open(Cause::Node);
        if held {
            self.repair_by = Some(by.max(Instant::now() + REPAIR));
        }
        Instant::now() < by || held
    }

    fn check_rules(&mut self, sandbox: &Sandbox, context: &Context) {
        self.looked = Instant::now();
        self.looks += 1;
        match (sandbox.rules(), self.is_meshed()) {
            (Rules::Gone, _) | (Rules::Nothing, false) => {}
            (Rules::All, true) => self.repaired |= self.repair_by.is_some(),
            (rules, true) => {
                if !self.awaits_repair(context) {
                    self.is_bare(context, &format!("{rules:?}"));
                }
            }
            (rules, false) => {
                let seen = format!("unmeshed pod {} has {rules:?}", self.name);
                context.ledger.violated(Invariant::UnmeshedRules, seen);
            }
        }
    }

    fn check_response(&mut self, sandbox: &Sandbox, context: &Context) {
        let Some(response) = sandbox.response() else {
            return;
        };
        let past_proxy = response.starts_with("app-of");
        if past_proxy && self.is_meshed() {
            if !self.awaits_repair(context) && !matches!(sandbox.rules(), Rules::Gone) {
                self.is_bare(context, &format!("reached without the proxy: {response}"));
            }
            return;
        }
        self.answered.get_or_insert_with(Instant::now);
    }

    /// Once for each pod.
    fn is_bare(&mut self, context: &Context, seen: &str) {
        if !self.bare {
            self.bare = true;
            let how = if self.repair_by.is_some() { " was not repaired" } else { "" };
            let seen = format!("meshed pod {}{how}: {seen}", self.name);
            context.ledger.violated(Invariant::MeshedRules, seen);
        }
    }

    fn check_start(&mut self, context: &Context) {
        if self.answered.is_some() || self.late {
            return;
        }
        let (invariant, bound) = match self.kind {
            Kind::Unmeshed => (Invariant::UnmeshedStart, UNMESHED),
            _ if self.repair_by.is_some() => (Invariant::MeshedStart, MESHED + REPAIR),
            _ => (Invariant::MeshedStart, MESHED),
        };
        let took = context.windows.elapsed_outside(self.held_by(), self.created);
        if took > context.normal + bound {
            self.late = true;
            let (name, kind, source) = (&self.name, self.kind, self.source);
            let state = if self.sandbox.is_some() { "added" } else { "not added" };
            let seen = format!("{name} ({kind:?}, {source:?}, {state}) not ready after {took:.0?}");
            context.ledger.violated(invariant, seen);
        }
    }

    /// What may hold the pod back. No promise is about these.
    fn held_by(&self) -> &'static [Cause] {
        match (self.kind, self.source) {
            (Kind::Manual, _) => {
                &[Cause::Node, Cause::NoConflist, Cause::ApiServer, Cause::Credential]
            }
            (_, Source::ApiServer) => &[Cause::Node, Cause::NoConflist, Cause::ApiServer],
            (_, Source::File) => &[Cause::Node, Cause::NoConflist],
        }
    }

    /// Checks that the deleted pod goes away.
    pub fn check_end(&mut self, context: &Context) {
        let Some(deleted) = self.deleted.filter(|_| !self.late) else {
            return;
        };
        let causes = [Cause::Node, Cause::NoConflist, Cause::ApiServer, Cause::NoKubeconfig];
        let took = context.windows.elapsed_outside(&causes, deleted);
        if took > END {
            self.late = true;
            let seen = format!("{} has a network {took:.0?} after its deletion", self.name);
            context.ledger.violated(Invariant::End, seen);
        }
    }
}
