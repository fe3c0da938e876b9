//! Chains to generated conflists: odd white space, escapes, numbers, nesting and old entries.

use serde_json::Value;

use crate::conflist::*;

/// Marsaglia's xorshift with a fixed seed, so that each run generates the same conflists.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    fn space(&mut self) -> &'static str {
        self.of(&["", "", " ", "\n", "\r\n", "\t", "\n    ", " \n\t "])
    }

    fn joined(&mut self, open: char, parts: Vec<String>, close: char) -> String {
        let mut text = String::from(open);
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                text += ",";
            }
            text += self.space();
            text += part;
            text += self.space();
        }
        text.push(close);
        text
    }

    fn value(&mut self, depth: usize) -> String {
        let kinds = if depth == 0 { 7 } else { 9 };
        match self.below(kinds) {
            0 => self.of(&["1e3", "-0.0", "12345678901234567890", "1.50"]).into(),
            1 => self.of(&["true", "false", "null"]).into(),
            2 => r#""\u003c\/\"]}""#.into(),
            3 => "\"é{[,🙂\"".into(),
            4 => r#""linkerd-cni""#.into(),
            5 => "{}".into(),
            6 => "[]".into(),
            7 => {
                let values = (0..self.below(3)).map(|_| self.value(depth - 1)).collect();
                self.joined('[', values, ']')
            }
            _ => {
                let members = self.members(depth - 1);
                self.joined('{', members, '}')
            }
        }
    }

    fn member(&mut self, key: &str, value: &str) -> String {
        format!("\"{key}\"{}:{}{value}", self.space(), self.space())
    }

    fn members(&mut self, depth: usize) -> Vec<String> {
        let keys = ["ipam", "mtu", "ké", "a\\\"b", "cniVersion", "x"];
        let members = (0..self.below(4)).map(|_| {
            let key = self.of(&keys);
            let value = self.value(depth);
            self.member(key, &value)
        });
        members.collect()
    }

    fn plugin(&mut self, kind: &str) -> String {
        let mut members = self.members(3);
        let kind = self.member("type", &format!("\"{kind}\""));
        members.insert(self.below(members.len() + 1), kind);
        self.joined('{', members, '}')
    }

    fn list(&mut self, kinds: &[&str]) -> String {
        let plugins = kinds.iter().map(|kind| self.plugin(kind)).collect();
        let plugins = self.joined('[', plugins, ']');
        let mut members = self.members(3);
        for (key, value) in [("plugins", &*plugins), ("name", "\"n\"")] {
            let member = self.member(key, value);
            members.insert(self.below(members.len() + 1), member);
        }
        let list = self.joined('{', members, '}');
        format!("{}{list}{}", self.space(), self.space())
    }
}

fn entry() -> Entry {
    let template = "{\n  \"type\": \"linkerd-cni\",\n  \"linkerd\": {\"a\": [1]}\n}";
    Entry::new(template, "/k").unwrap()
}

#[test]
fn unchaining_restores_any_conflist_byte_for_byte() {
    let mut random = Random(88_172_645_463_325_252);
    for turn in 0..5_000 {
        let kinds = ["calico", "portmap", "tuning"];
        let original = random.list(&kinds[..1 + turn % 3]);
        let list =
            Conflist::parse_chainable(&original).unwrap_or_else(|why| panic!("{why}: {original}"));
        let with = list.with_entry(&entry());
        let patched =
            Conflist::parse_chainable(&with).unwrap_or_else(|why| panic!("{why}: {with}"));
        assert!(patched.has_entry(&entry()), "{original}\n{with}");
        assert_eq!(patched.without_entry(), original);
        assert_eq!(patched.with_entry(&entry()), with);
    }
}

#[test]
fn chaining_replaces_old_plugin_entries_and_keeps_the_other_plugins() {
    let mut random = Random(88_172_645_463_325_252);
    for turn in 0..2_000 {
        let mut kinds = vec!["calico", "portmap"];
        for _ in 0..=turn % 3 {
            kinds.insert(random.below(kinds.len() + 1), PLUGIN);
        }
        let original = random.list(&kinds);
        let with = Conflist::parse_chainable(&original).unwrap().with_entry(&entry());
        let plugins = |text: &str| -> Vec<Value> {
            let value: Value = serde_json::from_str(text).unwrap();
            value["plugins"].as_array().unwrap().clone()
        };
        let mut expected = plugins(&original);
        expected.retain(|plugin| plugin["type"] != PLUGIN);
        // One entry behind another plugin keeps its place.
        let place = match kinds.iter().position(|kind| *kind == PLUGIN) {
            Some(place @ 1..) if kinds.len() == 3 => place,
            _ => 2,
        };
        expected.insert(place, entry().value().clone());
        assert_eq!(plugins(&with), expected, "{original}");
        let without = Conflist::parse_chainable(&with).unwrap().without_entry();
        expected.remove(place);
        assert_eq!(plugins(&without), expected, "{original}");
    }
}
