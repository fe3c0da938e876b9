use super::*;

const RECORD: &str = r#"{"command":"ADD","namespace":"ns","pod":"web-1",
    "container_id":"abc","decision":"failed","requests":2,"ms":7,
    "error":{"code":101,"msg":"no answer\nof the API server"},"new":{}}"#;

/// Parses [`RECORD`] with its first `from` replaced by `to`.
fn parse_with(from: &str, to: &str) -> Option<Record> {
    assert!(RECORD.contains(from), "{from}");
    Record::parse(RECORD.replacen(from, to, 1).as_bytes())
}

#[test]
fn record_is_logged_on_one_line_of_bounded_length() {
    let record = Record::parse(RECORD.as_bytes()).unwrap();
    assert_eq!(
        record.to_string(),
        "linkerd-cni: ADD ns/web-1 container abc: failed, 2 requests, 7 ms: \
         no answer of the API server (code 101)"
    );
    let long = parse_with("no answer", &"é".repeat(3000)).unwrap().to_string();
    assert!(long.chars().count() < TEXT_LIMIT + 100);
    let redirected = RECORD
        .replace("failed\"", "redirected\",\"backend\":\"native\"")
        .replace("\"error\":", "\"other\":");
    assert_eq!(
        Record::parse(redirected.as_bytes()).unwrap().to_string(),
        "linkerd-cni: ADD ns/web-1 container abc: redirected by native, 2 requests, 7 ms"
    );
}

#[test]
fn ignored_elements_of_known_lists_are_cut_and_logged_with_the_record() {
    let sent = |ignored: &str| parse_with("\"new\":{}", &format!("\"ignored\":{ignored}"));
    let list = |source: &str, element: &str| {
        format!(r#"{{"source":"{source}","elements":["{element}"],"more":18446744073709551615}}"#)
    };
    let lists = [
        list("inbound-ports-to-ignore", &"x".repeat(5000)),
        list("config.linkerd.io/skip-outbound-ports", "a\\n\\u001b"),
        list("config.linkerd.io/skip-outbound-ports", "twice"),
        list("of a later plugin", "y"),
    ];
    let record = sent(&format!("[{}]", lists.join(","))).unwrap();
    let sources: Vec<_> = record.ignored.iter().map(|list| list.source).collect();
    assert_eq!(sources, ["config.linkerd.io/skip-outbound-ports", "inbound-ports-to-ignore"]);
    assert_eq!(record.ignored[1].elements[0], format!("{}…", "x".repeat(100)));
    let line = record.to_string();
    assert!(!line.contains(char::is_control), "{line}");
    let start = "; ignored in config.linkerd.io/skip-outbound-ports: \"a\\n\\u{1b}\", ";
    assert!(line.contains(start), "{line}");
    for bad in ["{}", "[1]", r#"[{"source":1}]"#, r#"[{"source":"x","elements":[1]}]"#] {
        assert_eq!(sent(bad), None, "{bad}");
    }
}

#[test]
fn has_code_finds_codes_of_failed_and_redirected_pods() {
    let degraded = |code: u32| {
        let record = RECORD
            .replace("\"error\":", "\"other\":")
            .replace("\"new\":{}", &format!(r#""degraded":{{"code":{code},"msg":"a\nb"}}"#));
        Record::parse(record.as_bytes()).unwrap()
    };
    let is_rejected = |record: Record| record.has_code(Failure::TokenRejected);
    assert!(is_rejected(degraded(102)) && !is_rejected(degraded(101)));
    assert!(is_rejected(parse_with("101", "102").unwrap()));
    let line = degraded(101).to_string();
    assert!(line.ends_with("the annotations and the plugin entry: a b (code 101)"), "{line}");
}

#[test]
fn invalid_records_are_rejected() {
    for text in ["", "[]", "{}"] {
        assert_eq!(Record::parse(text.as_bytes()), None, "{text}");
    }
    for (from, to) in [
        ("ADD", "RUN"),
        ("ADD", "DEL"),
        ("web-1", "web\\n1"),
        ("web-1", &"a".repeat(300)),
        ("abc", "a b"),
        ("abc", ""),
        ("abc", &"a".repeat(300)),
        ("\"failed\"", "7"),
        ("\"ms\":7", "\"ms\":-1"),
    ] {
        assert_eq!(parse_with(from, to), None, "{to}");
    }
}

#[test]
fn record_keeps_failure_name_and_warnings_over_the_socket() {
    let record = Record::new(Command::Add, "c");
    assert_eq!(record.warnings(), [""; 0]);
    let record = Record { ipv6_bypasses_proxy: true, ..record }
        .with_containers(Vec::new(), vec!["app".into()])
        .with_degraded(Some(&Error::new(Failure::RequestDenied, "HTTP 403")))
        .with_error(&Error::new(Failure::RulesTimedOut, "busy"));
    let parsed = Record::parse(&serde_json::to_vec(&record).unwrap()).unwrap();
    assert_eq!(parsed, record);
    let failure = |error: Option<CallError>| error.unwrap().failure();
    assert_eq!(failure(parsed.error), Some(Failure::RulesTimedOut));
    assert_eq!(failure(parsed.degraded), Some(Failure::RequestDenied));
    assert_eq!(
        record.warnings(),
        [
            "containers that run as the proxy's user and bypass the proxy: app",
            "IPv6 traffic bypasses the proxy, which listens on IPv4 only",
            "the plugin used only the annotations and the plugin entry: HTTP 403 (code 102)",
        ]
    );
}

#[test]
fn record_of_the_longest_names_elements_and_errors_fits_the_socket() {
    let record = Record {
        namespace: "n".repeat(63),
        pod: "p".repeat(253),
        pod_uid: "u".repeat(36),
        ..Record::new(Command::Add, &"c".repeat(64))
    };
    let long = Error::new(Failure::ApiError, "\u{1}".repeat(5000));
    let list = |source| Ignored { source, elements: vec!["\u{1}".repeat(30_000); 100], more: 0 };
    let record = record.with_ignored(ignored_ports::sources().map(list).collect());
    let bytes = serde_json::to_vec(&record).unwrap();
    assert!(bytes.len() < SIZE_LIMIT, "{}", bytes.len());
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(value["ignored"][0]["elements"].as_array().unwrap().len(), 10);
    assert_eq!(value["ignored"][7]["more"], 100);

    let names = vec!["n".repeat(63); 25];
    let longest = record.with_containers(names.clone(), names).with_degraded(Some(&long));
    assert!(serde_json::to_vec(&longest).unwrap().len() > SIZE_LIMIT);
    let bytes = longest.with_error(&long).to_datagram();
    let parsed = Record::parse(&bytes).unwrap();
    let counts: Vec<_> =
        parsed.ignored.iter().map(|list| list.elements.len() + list.more).collect();
    assert_eq!(counts, vec![100; ignored_ports::sources().count()]);
    assert_eq!((parsed.exempt_containers.len(), parsed.more_exempt_containers), (10, 15));
    assert!(parsed.to_string().contains(", 15 more"), "{parsed}");
    assert!(parsed.error.is_some_and(|error| error.msg.ends_with('…')));
}

#[test]
fn only_a_cut_error_text_ends_with_an_ellipsis() {
    let long = Error::new(Failure::ApiError, "🔒".repeat(5000));
    let whole = Error::new(Failure::RequestDenied, "HTTP 403");
    let list = |source| Ignored { source, elements: vec!["🔒".repeat(100); 10], more: 0 };
    let record = Record::new(Command::Add, "c").with_degraded(Some(&long)).with_error(&whole);
    let record = record.with_ignored(ignored_ports::sources().map(list).collect());
    let names = vec!["n".repeat(63); 10];
    let record = record.with_containers(names.clone(), names);
    let record = Record { namespace: "ns".into(), pod: "web".into(), ..record };
    assert!(serde_json::to_vec(&record).unwrap().len() > SIZE_LIMIT);
    let parsed = Record::parse(&record.to_datagram()).unwrap();
    assert!(parsed.degraded.unwrap().msg.ends_with('…'));
    assert_eq!(parsed.error.unwrap().msg, "HTTP 403");
}

#[test]
fn record_with_an_unknown_backend_or_source_is_parsed() {
    let record = parse_with("\"new\":{}", r#""backend":"ebpf","source":"oracle""#).unwrap();
    assert_eq!((record.backend, record.source, record.requests), (None, None, 2));
    let record = parse_with("\"new\":{}", r#""backend":"nft","source":null"#).unwrap();
    assert_eq!((record.backend, record.source), (Some(Backend::Nft), None));
}
