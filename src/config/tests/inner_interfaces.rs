//! Lists of interfaces inside the pod.

use super::*;
use crate::redirect::interfaces;

/// A row of `inner_interfaces.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListRow {
    /// The list of the plugin entry, as JSON.
    entry: Option<String>,
    annotation: Option<String>,
    #[serde(default)]
    is_strict: bool,
    used: Option<String>,
    #[serde(default)]
    ignored: String,
    error: Option<String>,
}

#[test]
fn invalid_interface_names_are_ignored_and_reported_like_invalid_ports() {
    for (name, row) in table::rows::<ListRow>(include_str!("inner_interfaces.yaml")) {
        let mut entry = format!(r#","strict-annotations":{}"#, row.is_strict);
        if let Some(list) = &row.entry {
            entry += &format!(r#","inner-interfaces":{list}"#);
        }
        let annotations = match &row.annotation {
            Some(annotation) => annotations(&[("inner-interfaces", annotation)]),
            None => Annotations::new(),
        };
        let facts = PodFacts { annotations, ..PodFacts::default() };
        match defaults(&entry).resolve(&facts) {
            Ok(found) => {
                let used = &found.redirect.inner_interfaces;
                let used: Vec<&str> = used.iter().map(|interface| interface.name()).collect();
                assert_eq!(Some(used.join(",")), row.used, "{name}");
                let ignored = ignored_ports::summary(&found.ignored).unwrap_or_default();
                let ignored = ignored.replace("ignored in ", "").replace("config.linkerd.io/", "");
                assert_eq!(ignored, row.ignored, "{name}");
                for list in found.ignored {
                    assert_eq!(list.grammar(), interfaces::GRAMMAR);
                    assert_eq!(list.is_annotated(), row.annotation.is_some());
                }
            }
            Err(error) => {
                let expected = row.error.expect("the list is accepted");
                let failure = match row.annotation {
                    Some(_) => Failure::InvalidAnnotation,
                    None => Failure::InvalidConfig,
                };
                assert_eq!(error.failure, failure, "{name}");
                assert!(error.msg.contains(&expected), "{name}: {error}");
            }
        }
    }
}
