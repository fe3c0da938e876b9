use super::*;

fn checks() -> Vec<Check> {
    let items: Vec<String> = (1..=2).map(|node| format!("node-{node}: why")).collect();
    vec![
        Check::new("linkerd-cni", "a", "first", Ok(())),
        Check::new("linkerd-cni", "b", "second", Severity::Warning.fail("worth a look")),
        Check::new(
            "linkerd-cni-nodes",
            "c",
            "third",
            Severity::Error.fail_if_any("nodes fail", &items),
        ),
        Check::new("linkerd-cni-nodes", "d", "fourth", Severity::Pending.fail("1 of 2")),
        Check::new("linkerd-cni-pods", "e", "fifth", fail_to_read("the pods", &"HTTP 403")),
    ]
}

#[test]
fn render_uses_the_formats_of_linkerd_check() {
    for (name, format) in
        [("table", Format::Table), ("short", Format::Short), ("json", Format::Json)]
    {
        insta::assert_snapshot!(name, render(&checks(), format, false));
    }
}

/// No other output names the nodes, so the list must not be cut.
#[test]
fn problem_lists_every_item_of_a_long_list() {
    let nodes: Vec<String> = (1..=5000).map(|node| format!("node-{node}")).collect();
    let problem = Severity::Error.fail_if_any("nodes fail", &nodes).unwrap_err();
    assert!(problem.text.lines().skip(1).eq(nodes.iter().map(|node| format!("\t* {node}"))));
}

#[test]
fn short_report_without_problems_is_one_line() {
    let good = [Check::new("linkerd-cni", "a", "first", Ok(()))];
    assert_eq!(render(&good, Format::Short, false), "Status check results are √\n");
}

#[test]
fn warning_passes_error_fails_and_only_terminals_get_color() {
    let all = checks();
    assert_eq!(outcome(&all[..2]), Outcome::Right);
    assert_eq!(outcome(&all[4..]), Outcome::Unknown);
    assert_eq!(outcome(&all), Outcome::Wrong);
    assert_eq!(outcome(&all[3..4]), Outcome::Wrong);
    assert!(is_pending(&all) && !is_pending(&all[..3]));
    let plain = render(&all, Format::Table, false);
    assert!(!plain.contains('\x1b'));
    assert!(render(&all, Format::Table, true).contains("\x1b[32;1m√\x1b[0m first"));
}

#[test]
fn report_ends_with_a_check_mark_only_if_all_checks_passed() {
    let all = checks();
    for (checks, sign) in [(&all[..1], '√'), (&all[..2], '‼'), (&all[4..], '?'), (&all[..], '×')]
    {
        let text = render(checks, Format::Short, false);
        assert!(text.ends_with(&format!("Status check results are {sign}\n")), "{text}");
    }
}

#[test]
fn report_with_an_unknown_result_is_not_a_success() {
    let unknown = &checks()[4..];
    let report = json(unknown);
    assert_eq!((&report["success"], &report["outcome"]), (&json!(false), &json!("unknown")));
    let contexts = [("a".to_owned(), checks()[..1].to_vec()), ("b".to_owned(), unknown.into())];
    let report = contexts_json(&contexts);
    assert_eq!((&report["success"], &report["outcome"]), (&json!(false), &json!("unknown")));
}

#[test]
fn unknown_items_are_listed_below_the_problems() {
    let one = ["a".to_owned()];
    for (severity, problems, expected) in [
        (Severity::Error, &one[..], Severity::Error),
        (Severity::Pending, &one[..], Severity::Pending),
        (Severity::Warning, &one[..], Severity::Unknown),
        (Severity::Error, &[][..], Severity::Unknown),
    ] {
        let found = severity.fail_if_any_or_unknown("bad", problems, &["b".to_owned()]);
        let problem = found.unwrap_err();
        assert_eq!(problem.severity, expected, "{problem}");
        assert!(problem.text.ends_with("not known: b"), "{problem}");
        assert_eq!(problem.text.starts_with("bad:\n\t* a\n"), !problems.is_empty(), "{problem}");
    }
    assert_eq!(Severity::Error.fail_if_any_or_unknown("bad", &[], &[]), Ok(()));
}
