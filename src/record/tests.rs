use super::*;

const RECORD: &str = r#"{"level":"error","command":"ADD","namespace":"ns","pod":"web-1",
    "container_id":"abc","decision":"failed","requests":2,"ms":7,
    "error":{"code":101,"msg":"no answer\nof the API server"},"new":{}}"#;

#[test]
fn a_record_is_logged_on_one_line_of_bounded_length() {
    let record = Record::parse(RECORD.as_bytes()).unwrap();
    assert_eq!(
        record.to_string(),
        "linkerd-cni: ADD ns/web-1 container abc: failed, 2 requests, 7 ms: \
         no answer of the API server (code 101)"
    );
    assert_eq!(record.level, Level::Error);
    let long = RECORD.replace("no answer", &"é".repeat(3000));
    let long = Record::parse(long.as_bytes()).unwrap().to_string();
    assert!(long.chars().count() < TEXT_LIMIT + 100);
    let good = RECORD
        .replace("failed\"", "redirected\",\"backend\":\"native\"")
        .replace("\"error\":", "\"other\":");
    let good = Record::parse(good.as_bytes()).unwrap().to_string();
    assert_eq!(
        good,
        "linkerd-cni: ADD ns/web-1 container abc: redirected by native, 2 requests, 7 ms"
    );
}

#[test]
fn ignored_elements_of_known_lists_are_cut_and_logged_with_the_record() {
    let sent = |ignored: &str| {
        let record = RECORD.replace("\"new\":{}", &format!("\"ignored\":{ignored}"));
        Record::parse(record.as_bytes())
    };
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
fn a_rejected_token_counts_as_a_rejection_whether_or_not_the_pod_was_redirected() {
    let degraded = |code: u32| {
        let record = RECORD
            .replace("\"error\":", "\"other\":")
            .replace("\"new\":{}", &format!(r#""degraded":{{"code":{code},"msg":"a\nb"}}"#));
        Record::parse(record.as_bytes()).unwrap()
    };
    assert!(degraded(102).is_rejection() && !degraded(101).is_rejection());
    assert!(Record::parse(RECORD.replace("101", "102").as_bytes()).unwrap().is_rejection());
    let line = degraded(101).to_string();
    assert!(line.ends_with("alone were used: a b (code 101)"), "{line}");
}

#[test]
fn invalid_records_are_rejected() {
    for text in [
        "".to_owned(),
        "[]".into(),
        "{}".into(),
        RECORD.replace("ADD", "RUN"),
        RECORD.replace("web-1", "web\\n1"),
        RECORD.replace("web-1", &"a".repeat(300)),
        RECORD.replace("\"error\",", "\"loud\","),
        RECORD.replace("\"ms\":7", "\"ms\":-1"),
    ] {
        assert_eq!(Record::parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn a_record_with_the_longest_ignored_elements_fits_the_socket() {
    let mut record = Record {
        namespace: "n".repeat(63),
        pod: "p".repeat(253),
        pod_uid: "u".repeat(36),
        ..Record::new(Command::Add, &"c".repeat(64))
    };
    let list = |source| Ignored { source, elements: vec!["\u{1}".repeat(30_000); 100], more: 0 };
    record.ignore(SOURCES.into_iter().map(list).collect());
    record.finish(None, Duration::ZERO);
    let bytes = serde_json::to_vec(&record).unwrap();
    assert!(bytes.len() < SIZE_LIMIT, "{}", bytes.len());
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(value["level"], "warn");
    assert_eq!(value["ignored"][0]["elements"].as_array().unwrap().len(), 10);
    assert_eq!(value["ignored"][7]["more"], 100);
}

#[test]
fn a_record_without_ignored_elements_has_no_such_field() {
    let mut record = Record::new(Command::Add, "c");
    record.finish(None, Duration::ZERO);
    let text = serde_json::to_string(&record).unwrap();
    assert!(!text.contains("ignored") && text.contains("info"), "{text}");
}
