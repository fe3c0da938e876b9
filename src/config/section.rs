//! Reads the plugin entry member by member. An invalid member does not affect the others.

use serde_json::{Map, Value};

use crate::cni::Error;
use crate::cni::object::Object;
use crate::failure::Failure;
use crate::quote;

/// An object of the plugin entry, such as `"linkerd"`.
pub(super) struct Section {
    /// Prefix that names the object in errors, for example `"linkerd": `.
    path: String,
    members: Map<String, Value>,
    /// The error for the object itself, or for its first invalid member.
    pub problem: Option<Error>,
}

impl Section {
    /// Reads the object `name` of the network config. Of duplicate keys, [`Value`] keeps the last,
    /// as Go's decoder does.
    pub fn read_object(name: &str, config: &Object) -> Self {
        let path = format!("\"{name}\": ");
        let Some(raw) = config.non_null(name) else {
            return Section { path, members: Map::new(), problem: None };
        };
        let why = match serde_json::from_str(raw.get()) {
            Ok(Value::Object(members)) => return Section { path, members, problem: None },
            Ok(other) => format!("{} is not an object", quoted(&other)),
            Err(error) => error.to_string(),
        };
        Section { path, members: Map::new(), problem: Some(entry_error("", name, &why)) }
    }

    /// Reads the member `key` with `parse`. If `parse` returns `None`, records the error that the
    /// value is not `expected`. A missing or null member is valid.
    pub fn read<T>(
        &mut self,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.members.get(key).filter(|value| !value.is_null())?;
        let parsed = parse(value);
        if parsed.is_none() && self.problem.is_none() {
            let problem = format!("{} is not {expected}", quoted(value));
            self.problem = Some(entry_error(&self.path, key, &problem));
        }
        parsed
    }

    pub fn flag(&mut self, key: &str) -> bool {
        self.read(key, "true or false", Value::as_bool).unwrap_or_default()
    }

    /// Records an error with the reason `why` if the member `key` is set to anything but false.
    pub fn reject_unless_false(&mut self, key: &str, why: &str) {
        let value = match self.members.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => return,
            Some(value) => value,
        };
        if self.problem.is_none() {
            let problem = format!("{} is not supported: {why}", quoted(value));
            let remedy = format!("remove {key} from the plugin entry, or set it to false");
            self.problem = Some(entry_error(&self.path, key, &problem).with_details(remedy));
        }
    }

    pub fn string(&mut self, key: &str, default: &str) -> String {
        self.read(key, "a string", string).unwrap_or_else(|| default.to_owned())
    }

    pub fn number(&mut self, key: &str) -> i64 {
        self.read(key, "a whole number", Value::as_i64).unwrap_or_default()
    }

    pub fn strings(&mut self, key: &str) -> Vec<String> {
        self.optional_strings(key).unwrap_or_default()
    }

    /// Reads a list of strings. `None`: the member is missing or invalid.
    pub fn optional_strings(&mut self, key: &str) -> Option<Vec<String>> {
        self.read(key, "a list of strings", |value| parse_list(value, string))
    }

    /// Reads a list of ports, which may be numbers or strings. Upstream requires numbers in
    /// `ports-to-redirect` and strings in the other lists.
    pub fn ports(&mut self, key: &str) -> Vec<String> {
        let expected = "a list of ports, such as [\"25\", \"8000-8010\"]";
        self.read(key, expected, |value| parse_list(value, port_text)).unwrap_or_default()
    }
}

fn port_text(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.as_u64()?.to_string()),
        // Go's decoder turns null into an empty string, which is an invalid element.
        Value::Null => Some(String::new()),
        other => string(other),
    }
}

/// Returns the error for the invalid value of `key` in the object `"linkerd"` of the plugin entry.
pub(super) fn config_error(key: &str, problem: &str) -> Error {
    entry_error("\"linkerd\": ", key, problem)
}

fn entry_error(path: &str, key: &str, problem: &str) -> Error {
    Error::new(
        Failure::InvalidConfig,
        format!("plugin entry of linkerd-cni: {path}\"{key}\": {problem}"),
    )
}

pub(super) fn string(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Parses every element of a list. `None`: the value is not a list, or an element is invalid.
fn parse_list<T>(value: &Value, element: fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(element).collect()
}

fn quoted(value: &Value) -> String {
    quote::cut(&value.to_string())
}
