//! Chains to generated conflists: odd white space, escapes, numbers, nesting and old entries.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

use crate::conflist::*;

fn space() -> impl Strategy<Value = &'static str> {
    select(&["", "", " ", "\n", "\r\n", "\t", "\n    ", " \n\t "][..])
}

/// Generates an array or an object: `parts` between the brackets, with white space around each
/// part.
fn joined(
    [open, close]: [char; 2],
    parts: impl Strategy<Value = Vec<String>>,
) -> impl Strategy<Value = String> {
    (parts, vec((space(), space()), 10)).prop_map(move |(parts, spaces)| {
        let mut spaced = Vec::new();
        for (part, (before, after)) in parts.into_iter().zip(spaces) {
            spaced.push(format!("{before}{part}{after}"));
        }
        format!("{open}{}{close}", spaced.join(","))
    })
}

/// Returns a member of an object, with white space before and after the colon.
fn member(key: &str, value: &str, [before, after]: [&str; 2]) -> String {
    format!("\"{key}\"{before}:{after}{value}")
}

fn members(value: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<String>> {
    let keys = &["ipam", "mtu", "ké", "a\\\"b", "cniVersion", "x"][..];
    let member = (select(keys), value, [space(), space()])
        .prop_map(|(key, value, spaces)| member(key, &value, spaces));
    vec(member, 0..4)
}

fn value() -> impl Strategy<Value = String> {
    let leaf =
        select(&["1e3", "-0.0", "12345678901234567890", "1.50", "true", "null", "{}", "[]"][..]);
    let text = select(&[r#""\u003c\/\"]}""#, "\"é{[,🙂\"", r#""linkerd-cni""#][..]);
    prop_oneof![leaf, text].prop_map(str::to_owned).prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            joined(['[', ']'], vec(inner.clone(), 0..3)),
            joined(['{', '}'], members(inner))
        ]
    })
}

/// Generates an object with the `required` members at a random position among other members.
fn object(required: Vec<String>) -> impl Strategy<Value = String> {
    let insert_required = move |(mut members, index): (Vec<String>, prop::sample::Index)| {
        let position = index.index(members.len() + 1);
        members.splice(position..position, required.clone());
        members
    };
    joined(['{', '}'], (members(value()), any::<prop::sample::Index>()).prop_map(insert_required))
}

/// Generates a conflist whose plugins have these types.
fn conflist(types: Vec<&'static str>) -> impl Strategy<Value = String> {
    let plugin = |name| object(vec![format!("\"type\": \"{name}\"")]);
    let plugins: Vec<_> = types.into_iter().map(plugin).collect();
    (joined(['[', ']'], plugins), [space(), space()]).prop_flat_map(|(plugins, spaces)| {
        object(vec![member("name", "\"n\"", spaces), member("plugins", &plugins, spaces)])
    })
}

fn entry() -> Entry {
    let template = "{\n  \"type\": \"linkerd-cni\",\n  \"linkerd\": {\"a\": [1]}\n}";
    Entry::new(template, "/k").unwrap()
}

fn plugins(text: &str) -> Vec<Value> {
    let value: Value = serde_json::from_str(text).unwrap();
    value["plugins"].as_array().unwrap().clone()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(500)
    })]

    #[test]
    fn unchaining_restores_any_conflist_byte_for_byte(
        original in select(&[1, 2, 3][..])
            .prop_flat_map(|count| conflist(["calico", "portmap", "tuning"][..count].to_vec()))
    ) {
        let chained_text = Conflist::parse_chainable(&original).unwrap().with_entry(&entry());
        let chained = Conflist::parse_chainable(&chained_text).unwrap();
        prop_assert!(chained.has_entry(&entry()), "{original}\n{chained_text}");
        prop_assert_eq!(chained.without_entry(), original);
        prop_assert_eq!(chained.with_entry(&entry()), chained_text);
    }

    #[test]
    fn chaining_replaces_old_plugin_entries_and_keeps_the_other_plugins(
        (types, original) in vec(0..=2_usize, 1..=3).prop_flat_map(|places| {
            let mut types = vec!["calico", "portmap"];
            for place in places {
                types.insert(place, PLUGIN);
            }
            (Just(types.clone()), conflist(types))
        })
    ) {
        let old = Conflist::parse_chainable(&original).unwrap();
        prop_assert!(!old.has_entry(&entry()));
        let chained_text = old.with_entry(&entry());
        let mut expected = plugins(&original);
        expected.retain(|plugin| plugin["type"] != PLUGIN);
        // The new entry takes the place of the old one if that was the only one and another plugin
        // runs before it. Otherwise the new entry is the last plugin.
        let place = match types.iter().position(|name| *name == PLUGIN) {
            Some(place @ 1..) if types.len() == 3 => place,
            _ => 2,
        };
        expected.insert(place, entry().value);
        prop_assert_eq!(plugins(&chained_text), &*expected, "{}", original);
        let without = Conflist::parse_chainable(&chained_text).unwrap().without_entry();
        expected.remove(place);
        prop_assert_eq!(plugins(&without), &*expected, "{}", original);
    }
}
