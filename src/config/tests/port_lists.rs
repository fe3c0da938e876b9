//! Port lists with invalid elements.

use super::*;

/// A row of `port_lists.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortListRow {
    direction: Direction,
    /// The list of the plugin entry, as JSON.
    entry: Option<String>,
    annotation: Option<String>,
    used: Option<String>,
    #[serde(default)]
    ignored: String,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Inbound,
    Outbound,
}

impl Direction {
    fn name(&self) -> &'static str {
        match self {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        }
    }
}

#[test]
fn invalid_ports_are_ignored_as_in_upstream_and_reported() {
    for (name, row) in table::rows::<PortListRow>(include_str!("port_lists.yaml")) {
        let direction = row.direction.name();
        let entry = match &row.entry {
            Some(list) => format!(r#","{direction}-ports-to-ignore":{list}"#),
            None => String::new(),
        };
        let key = format!("skip-{direction}-ports");
        let annotations = match &row.annotation {
            Some(annotation) => annotations(&[(&key, annotation)]),
            None => Annotations::new(),
        };
        let facts = PodFacts { annotations, ..PodFacts::default() };
        match defaults(&entry).resolve(&facts) {
            Ok(found) => {
                let used = match row.direction {
                    Direction::Inbound => &found.redirect.skip_inbound,
                    Direction::Outbound => &found.redirect.skip_outbound,
                };
                assert_eq!(Some(ports::joined(used)), row.used, "{name}");
                let ignored = ignored_ports::summary(&found.ignored).unwrap_or_default();
                let ignored = ignored.replace("ignored in ", "").replace("config.linkerd.io/", "");
                assert_eq!(ignored, row.ignored, "{name}");
            }
            Err(error) => {
                let failure = match row.annotation {
                    Some(_) => Failure::InvalidAnnotation,
                    None => Failure::InvalidConfig,
                };
                assert_eq!(error.failure, failure, "{name}");
                let expected = row.error.expect("the list is accepted");
                assert!(error.msg.contains(&expected), "{name}: {error}");
            }
        }
    }
}

#[test]
fn control_plane_pod_skips_the_api_ports_even_if_its_port_list_is_invalid() {
    let facts = PodFacts {
        annotations: annotations(&[("skip-outbound-ports", "http")]),
        api_ports: vec![443.into()],
        ..PodFacts::default()
    };
    let found = defaults("").resolve(&facts).unwrap();
    assert_eq!(ports::joined(&found.redirect.skip_outbound), "443");
    assert_eq!(found.ignored[0].elements, ["http"]);
}

#[test]
fn invalid_proxy_port_is_ignored_as_in_upstreams_injector() {
    for (key, value) in [
        ("inbound-port", "0"),
        ("outbound-port", "65536"),
        ("admin-port", "x"),
        ("admin-port", " 4191"),
        ("inbound-port", "4143\n"),
        ("control-port", "80-90"),
    ] {
        let facts = PodFacts { annotations: annotations(&[(key, value)]), ..PodFacts::default() };
        let found = defaults("").resolve(&facts).unwrap();
        assert_eq!(found.redirect, redirect(&defaults(""), &[]).unwrap());
        let ignored = Ignored {
            source: annotation::redirect_annotation(&format!("config.linkerd.io/{key}"))
                .unwrap()
                .key,
            elements: vec![value.into()],
            more: 0,
        };
        assert_eq!(found.ignored, [ignored]);
        assert_eq!(found.ignored[0].grammar(), "a port from 1 to 65535");
        // The container's ports take precedence, so the annotations are not read.
        let proxy = Proxy {
            inbound_port: Some(1),
            outbound_port: Some(2),
            control_port: Some(3),
            admin_port: Some(4),
            ..Proxy::default()
        };
        let found = defaults("").resolve(&PodFacts { proxy, ..facts }).unwrap();
        assert_eq!(found.ignored, []);
    }
}

/// The API server accepts annotations of up to 256 KiB.
#[test]
fn annotation_of_250_kilobytes_is_read_in_linear_time() {
    let fill = |unit: &str| unit.repeat(250_000 / unit.len());
    let ranges: Vec<String> = (0..40_000).map(|first| format!("{first}-60000")).collect();
    for (name, text) in [
        ("one element", fill("x")),
        ("control characters", fill("a\n\u{1b}")),
        ("one wide element", fill("\u{1f980}")),
        ("invalid elements", fill("x,")),
        ("empty elements", fill(",")),
        ("elements with blanks", fill("1 ,")),
        ("leading zeros", format!("{}1", fill("0"))),
        ("ports", fill("1,")),
        ("ranges", ranges.join(",")),
        ("subnets", fill("10.0.0.1/8,")),
        ("subnets of the wrong kind", fill("10.0.0.1,")),
    ] {
        for key in ["skip-outbound-ports", "skip-inbound-ports", "skip-subnets", "proxy-uid"] {
            for more in ["", r#","strict-annotations":true"#] {
                let config = defaults(more);
                let facts =
                    PodFacts { annotations: annotations(&[(key, &text)]), ..PodFacts::default() };
                let before = cpu_time();
                let found = config.resolve(&facts);
                let took = cpu_time() - before;
                // 5 ms in a release build. Quadratic work would take seconds.
                assert!(took < Duration::from_millis(250), "{name} in {key}: {took:?}");
                let shown = match &found {
                    Ok(found) => ignored_ports::summary(&found.ignored).unwrap_or_default(),
                    Err(error) => error.to_string(),
                };
                assert!(shown.len() < 1500, "{name} in {key}: {} bytes", shown.len());
                assert!(!shown.contains(char::is_control), "{name} in {key}: {shown}");
                let longest = found.err().map_or(0, |error| error.msg.len());
                assert!(longest < 1000, "{name} in {key}: {longest} bytes");
            }
        }
    }
}

/// CPU time of this thread. Tests that run in parallel do not affect it.
fn cpu_time() -> Duration {
    Duration::from(nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap())
}
