use super::*;
use crate::agent::reconcile::kubeconfig::DesiredKubeconfig;

fn waiting(why: &str) -> Finding {
    Waiting(why.into())
}

fn problem(why: &str) -> Finding {
    Problem(why.into())
}

#[test]
fn readiness_names_each_part_of_the_node_that_is_not_in_place() {
    for (findings, wrote, not_ready, logged) in [
        (vec![], false, None, &[][..]),
        (
            vec![
                (Subject::NetworkConfig, waiting("no entry")),
                (Subject::Kubeconfig, waiting("no token")),
            ],
            false,
            Some("kubeconfig: no token; network config: no entry"),
            &[],
        ),
        (
            vec![
                (Subject::NetworkConfig, Warning("several".into())),
                (Subject::NetworkConfig, problem("no entry")),
                (Subject::NetworkConfig, problem("later")),
                (Subject::Binary, Warning("overwritten".into())),
            ],
            true,
            Some("network config: no entry"),
            &[Subject::Binary, Subject::NetworkConfig],
        ),
        (vec![(Subject::Leftovers, problem("x"))], false, None, &[Subject::Leftovers]),
        (vec![], true, Some("files were just written and are not verified yet"), &[]),
    ] {
        let judgement = Judgement::new(findings, wrote, StatusBody::default());
        assert_eq!(judgement.status.not_ready.as_deref(), not_ready, "{judgement:?}");
        let found = judgement.logged();
        assert!(!found.values().any(|why| why == "later"), "{judgement:?}");
        assert_eq!(found.into_keys().collect::<Vec<_>>(), logged, "{judgement:?}");
    }
}

/// Returns the outcomes of a pass that found everything correct and wrote nothing.
fn unchanged() -> Installed {
    let token = PluginToken { text: Ok("t".into()), request_error: None, allowed_at: None };
    let desired = DesiredKubeconfig::Own { text: "{}".into(), token: "t".into() };
    Installed {
        kept: KeptFiles::default(),
        token,
        decision: desired.into(),
        host_name: HostName::Absent,
        binaries: StepOutcome::default(),
        kubeconfig: StepOutcome::default(),
        configs: ConfigsReconciled::default(),
        contended: Vec::new(),
    }
}

fn verified(self_test: SelfTestState) -> Verified {
    Verified { self_test, token: None, token_expires: None, pods_awaited_until: None }
}

fn contended(file: WrittenFile) -> ContendedFile {
    ContendedFile { file, over_at: Instant::now(), is_new: false }
}

/// Judges a pass that differs from [`unchanged`] by `change`, and whose self-test has passed.
/// Returns also whether the files were settled.
fn judged(change: impl FnOnce(&mut Installed)) -> (bool, Judgement) {
    let mut installed = unchanged();
    change(&mut installed);
    let passed = SelfTestState::Ended(TestOutcome::Passed("".into()));
    (installed.is_settled(), judge(&installed, &verified(passed)))
}

#[test]
fn the_files_are_settled_only_after_a_pass_that_wrote_nothing_and_failed_at_nothing() {
    type Change = fn(&mut Installed);
    let changes: [(&str, Change, Option<&str>); 10] = [
        ("nothing", |_| {}, None),
        (
            "a plugin that the agent may not run",
            |installed| installed.binaries.warning = Some("cannot check".into()),
            None,
        ),
        (
            "binary written",
            |installed| installed.binaries.writes = 1,
            Some("files were just written and are not verified yet"),
        ),
        (
            "host name replaced",
            |installed| installed.host_name = HostName::Replaced,
            Some("files were just written and are not verified yet"),
        ),
        (
            "network config changed meanwhile",
            |installed| installed.configs.outcome.is_stale = true,
            Some("files were just written and are not verified yet"),
        ),
        (
            "kubeconfig not written",
            |installed| installed.kubeconfig.problem = Some("disk full".into()),
            Some("kubeconfig: disk full"),
        ),
        (
            "no token yet",
            |installed| {
                installed.decision = DesiredKubeconfig::Missing(waiting("no token")).into();
                installed.configs.outcome.problem = Some("no entry".into());
            },
            Some("kubeconfig: no token; network config: no entry"),
        ),
        (
            "entry removed",
            |installed| {
                let file = WrittenFile::ConfigWithoutEntry("a.conflist".into());
                installed.contended.push(contended(file));
            },
            Some(
                "network config: a.conflist keeps being overwritten by another writer, which \
                 removes the plugin entry, so meshed pods may start without redirect rules: \
                 with Cilium set cni.exclusive=false, otherwise stop that writer",
            ),
        ),
        (
            "entry overwritten by one that does not work",
            |installed| {
                let file = WrittenFile::ConfigWithUnusableEntry("a.conflist".into());
                installed.contended.push(contended(file));
            },
            Some(
                "network config: a.conflist keeps being overwritten by another writer, with a \
                 plugin entry that does not work, so meshed pods may start without redirect \
                 rules: stop that writer, such as a second agent with another kubeconfig",
            ),
        ),
        (
            "entry overwritten by another agent",
            |installed| {
                let file = WrittenFile::ConfigWithEntry("a.conflist".into());
                installed.contended.push(contended(file));
            },
            None,
        ),
    ];
    for (name, change, not_ready) in changes {
        let (is_settled, judgement) = judged(change);
        assert_eq!(judgement.status.not_ready.as_deref(), not_ready, "{name}");
        assert_eq!(is_settled, not_ready.is_none(), "{name}");
    }
}

#[test]
fn a_node_that_waits_for_its_token_logs_no_problem() {
    let (_, judgement) = judged(|installed| {
        installed.decision = DesiredKubeconfig::Missing(problem("no token")).into();
        installed.configs.outcome.problem = Some("no entry".into());
    });
    assert_eq!(judgement.logged().len(), 2);
    let (_, judgement) = judged(|installed| {
        installed.decision = DesiredKubeconfig::Missing(waiting("no token")).into();
        installed.configs.outcome.problem = Some("no entry".into());
    });
    assert_eq!(judgement.logged(), BTreeMap::new());
}

#[test]
fn the_next_pass_is_due_at_the_earliest_time_that_a_step_or_check_needs() {
    let soon = Instant::now();
    let later = soon + std::time::Duration::from_secs(1);
    let (_, judgement) = judged(|_| {});
    assert_eq!(judgement.next_pass_at, None);
    let (_, judgement) = judged(|installed| {
        installed.token.allowed_at = Some(later);
        installed.configs.outcome.allowed_at = Some(soon);
        installed.binaries.allowed_at = Some(later);
    });
    assert_eq!(judgement.next_pass_at, Some(soon));
}
