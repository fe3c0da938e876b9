//! Reads the plugin entry member by member, so that an invalid member leaves the others valid.

use serde_json::{Map, Value};

use crate::cni::Error;
use crate::cni::object::Object;
use crate::failure::Failure;
use crate::quote;

pub(super) struct Section<'a> {
    /// Prefix that names the object in errors, e.g. `"linkerd": `.
    path: String,
    members: Map<String, Value>,
    /// Receives the first problem.
    problem: &'a mut Option<Error>,
}

impl<'a> Section<'a> {
    /// The object `name` of the configuration. It is parsed as [`Value`], which keeps the last
    /// of duplicate keys as Go's decoder does.
    pub fn of(name: &str, config: &Object, problem: &'a mut Option<Error>) -> Self {
        let members = match config.non_null(name).map(|raw| serde_json::from_str(raw.get())) {
            None => Ok(Map::new()),
            Some(Ok(Value::Object(members))) => Ok(members),
            Some(Ok(other)) => Err(format!("{} is not an object", quoted(&other))),
            Some(Err(error)) => Err(error.to_string()),
        };
        let members = members.unwrap_or_else(|why| {
            problem.get_or_insert_with(|| entry_error("", name, &why));
            Map::new()
        });
        Section { path: format!("\"{name}\": "), members, problem }
    }

    /// Reads the member `key` with `read`. If `read` returns `None`, reports that the value is
    /// not `wanted`. A missing or null member is not a problem.
    pub fn read<T>(
        &mut self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.members.get(key).filter(|value| !value.is_null())?;
        let parsed = read(value);
        if parsed.is_none() {
            let problem = format!("{} is not {wanted}", quoted(value));
            self.problem.get_or_insert_with(|| entry_error(&self.path, key, &problem));
        }
        parsed
    }

    pub fn flag(&mut self, key: &str) -> bool {
        self.read(key, "true or false", Value::as_bool).unwrap_or_default()
    }

    /// Reports the member `key` if it has another value than false, with the reason `why`.
    pub fn reject_unless_false(&mut self, key: &str, why: &str) {
        match self.members.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(value) => {
                let problem = format!("{} is not supported: {why}", quoted(value));
                let error = entry_error(&self.path, key, &problem).with_details(format!(
                    "remove {key} from the plugin entry, or set it to false"
                ));
                self.problem.get_or_insert(error);
            }
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

    pub fn optional_strings(&mut self, key: &str) -> Option<Vec<String>> {
        self.read(key, "a list of strings", |value| list(value, string))
    }

    /// Reads a list of ports. Upstream requires numbers in `ports-to-redirect` and strings in
    /// the other lists; here each list takes both.
    pub fn ports(&mut self, key: &str) -> Vec<String> {
        let port = |value: &Value| match value {
            Value::Number(number) => number.as_u64().map(|number| number.to_string()),
            // Go's decoder turns null into an empty string, which is an invalid element.
            Value::Null => Some(String::new()),
            other => string(other),
        };
        let wanted = "a list of ports, such as [\"25\", \"8000-8010\"]";
        self.read(key, wanted, |value| list(value, port)).unwrap_or_default()
    }
}

/// Error for the invalid value of `key` in the object `"linkerd"` of the plugin entry.
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

fn list<T>(value: &Value, element: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(element).collect()
}

fn quoted(value: &Value) -> String {
    quote::cut(&value.to_string())
}
