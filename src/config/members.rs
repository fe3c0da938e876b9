//! Reading the configuration member by member, so that a bad one spoils nothing else.

use serde_json::{Map, Value};

use super::{CONFIG_REMEDY, Error, Object, code};

/// What is quoted of a bad value, in characters.
const QUOTED: usize = 100;

/// An object of the configuration, and where the first problem goes.
pub(super) struct Section<'a> {
    /// How problems name the object, e.g. `"linkerd": `.
    path: String,
    members: Map<String, Value>,
    problem: &'a mut Option<Error>,
}

impl<'a> Section<'a> {
    /// The texts among the configuration itself; the rest of it is others'.
    pub fn top(config: &Object, problem: &'a mut Option<Error>) -> Self {
        let value = |key: &str| serde_json::from_str(config.given(key)?.get()).ok();
        Section {
            path: String::new(),
            members: ["log_level"]
                .into_iter()
                .filter_map(|key| Some((key.to_owned(), value(key)?)))
                .collect(),
            problem,
        }
    }

    /// The member `name` of the configuration. Through [`Value`], which takes the last
    /// of duplicate keys as Go's decoder does.
    pub fn of(name: &str, config: &Object, problem: &'a mut Option<Error>) -> Self {
        let mut section = Section {
            path: String::new(),
            members: Map::new(),
            problem,
        };
        match config
            .given(name)
            .map(|raw| serde_json::from_str(raw.get()))
        {
            None => {}
            Some(Ok(Value::Object(members))) => section.members = members,
            Some(Ok(other)) => {
                section.complain(name, &format!("{} is not an object", quoted(&other)))
            }
            Some(Err(error)) => section.complain(name, &error.to_string()),
        }
        section.path = format!("\"{name}\": ");
        section
    }

    /// A member by `read`, which gives `None` for a value that is not `wanted`.
    pub fn read<T>(
        &mut self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.members.get(key).filter(|value| !value.is_null())?;
        let found = read(value);
        if found.is_none() {
            let text = format!("{} is not {wanted}", quoted(value));
            self.complain(key, &text);
        }
        found
    }

    pub fn number(&mut self, key: &str) -> i64 {
        self.read(key, "a whole number", Value::as_i64)
            .unwrap_or_default()
    }

    pub fn texts(&mut self, key: &str) -> Vec<String> {
        self.read(key, "a list of texts", |value| list(value, text))
            .unwrap_or_default()
    }

    /// Upstream wants numbers in one list and texts in the others; both do in all.
    pub fn ports(&mut self, key: &str) -> Vec<String> {
        let port = |value: &Value| match value {
            Value::Number(number) => number.as_u64().map(|number| number.to_string()),
            // Go's decoder makes an empty text of it, which is a bad element.
            Value::Null => Some(String::new()),
            other => text(other),
        };
        let wanted = "a list of ports, such as [\"25\", \"8000-8010\"]";
        self.read(key, wanted, |value| list(value, port))
            .unwrap_or_default()
    }

    fn complain(&mut self, key: &str, problem: &str) {
        let path = &self.path;
        self.problem.get_or_insert_with(|| {
            Error::new(
                code::INVALID_CONFIG,
                format!("network configuration of linkerd-cni: {path}\"{key}\": {problem}"),
            )
            .with_details(CONFIG_REMEDY)
        });
    }
}

pub(super) fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn list<T>(value: &Value, element: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(element).collect()
}

fn quoted(value: &Value) -> String {
    value.to_string().chars().take(QUOTED).collect()
}
