//! The query of a request for a list: selectors and parts. Unknown parameters, operators and fields
//! are errors, as the API server rejects unknown fields.

use serde_json::{Value, json};

/// The fields of each resource that a field selector may name (`AddFieldLabelConversionFunc` in
/// <https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/apis/core/v1/conversion.go>), besides
/// name and namespace.
const FIELDS: [(&str, &[&str]); 2] = [
    ("pods", &["spec.nodeName", "status.phase"]),
    ("events", &["involvedObject.uid", "reason", "type"]),
];

#[derive(Default)]
pub struct ListQuery {
    requirements: Vec<Requirement>,
    limit: usize,
    /// Number of items in the parts before.
    offset: usize,
}

enum Requirement {
    Label { key: String, value: Option<String> },
    Field { pointer: String, value: String, is_equal: bool },
}

impl ListQuery {
    /// Parses the query of a request. Fails without a limit, because the list of a large cluster
    /// does not fit into one response.
    pub fn parse(resource: &str, query: &str) -> Result<ListQuery, String> {
        let mut parsed = ListQuery::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = percent_decode(value)?;
            match key {
                "limit" => parsed.limit = parse_number(&value)?,
                "continue" => parsed.offset = parse_number(&value)?,
                "labelSelector" => parsed.requirements.extend(parse_labels(&value)?),
                "fieldSelector" => parsed.requirements.extend(parse_fields(resource, &value)?),
                _ => return Err(format!("the parameter {parameter}")),
            }
        }
        if parsed.limit == 0 {
            return Err(format!("a list of {resource} without a limit"));
        }
        Ok(parsed)
    }

    /// Returns a part of the list of matching items.
    pub fn page(&self, items: Vec<Value>) -> Value {
        let matching: Vec<Value> = items.into_iter().filter(|item| self.matches(item)).collect();
        let end = matching.len().min(self.offset + self.limit);
        let begin = self.offset.min(end);
        // The offset of the next part. Empty after the last part.
        let next = if end < matching.len() { end.to_string() } else { String::new() };
        json!({"metadata": {"continue": next}, "items": matching[begin..end]})
    }

    fn matches(&self, item: &Value) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(item))
    }
}

impl Requirement {
    fn matches(&self, item: &Value) -> bool {
        match self {
            Requirement::Label { key, value } => match (&item["metadata"]["labels"][key], value) {
                (Value::Null, _) => false,
                (_, None) => true,
                (found, Some(value)) => found == value,
            },
            Requirement::Field { pointer, value, is_equal } => {
                let actual = item.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                (actual == value) == *is_equal
            }
        }
    }
}

fn parse_number(value: &str) -> Result<usize, String> {
    value.parse().map_err(|_| format!("the number {value}"))
}

fn parse_labels(selector: &str) -> Result<Vec<Requirement>, String> {
    let mut requirements = Vec::new();
    for part in selector.split(',') {
        if part.is_empty() || part.contains(['!', '(', ' ']) {
            return Err(format!("the label selector {selector}"));
        }
        requirements.push(match part.split_once('=') {
            None => Requirement::Label { key: part.to_owned(), value: None },
            Some((key, value)) => {
                Requirement::Label { key: key.to_owned(), value: Some(value.to_owned()) }
            }
        });
    }
    Ok(requirements)
}

fn parse_fields(resource: &str, selector: &str) -> Result<Vec<Requirement>, String> {
    let mut requirements = Vec::new();
    for part in selector.split(',') {
        let Some((field, value)) = part.split_once('=') else {
            return Err(format!("the field selector {selector}"));
        };
        let (field, is_equal) = match field.strip_suffix('!') {
            Some(field) => (field, false),
            None => (field, true),
        };
        if !is_selectable(resource, field) {
            return Err(format!("field label not supported: {field} of {resource}"));
        }
        let pointer = format!("/{}", field.replace('.', "/"));
        requirements.push(Requirement::Field { pointer, value: value.to_owned(), is_equal });
    }
    Ok(requirements)
}

fn is_selectable(resource: &str, field: &str) -> bool {
    if matches!(field, "metadata.name" | "metadata.namespace") {
        return true;
    }
    FIELDS.iter().any(|(name, fields)| *name == resource && fields.contains(&field))
}

fn percent_decode(value: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next().unwrap_or_default(), rest.next().unwrap_or_default()];
        match parse_hex(&digits) {
            Some(byte) => bytes.push(byte),
            None => return Err(format!("the value {value}")),
        }
    }
    String::from_utf8(bytes).map_err(|_| format!("the value {value}"))
}

fn parse_hex(digits: &[u8]) -> Option<u8> {
    let digits = str::from_utf8(digits).ok()?;
    u8::from_str_radix(digits, 16).ok()
}
