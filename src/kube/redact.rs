//! Decodes API responses and describes errors without leaking secrets. A response may quote the
//! request with its token, and a pod may have a password in a field of the wrong type.

use serde::de::{DeserializeOwned, Error as _};

use crate::quote::one_line;

/// Longest message of an error response that is shown, in characters.
const MESSAGE_LIMIT: usize = 500;

/// Decodes a JSON object. Rejects a JSON list explicitly, because serde accepts a list for a struct
/// and fills the fields in order.
pub fn decode_object<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(serde_json::Error::custom("unexpected list, expected an object"));
    }
    serde_json::from_slice(bytes)
}

/// Describes why text is invalid JSON. Omits the invalid value, which serde's own message quotes.
pub fn describe_json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let Some((actual, expected)) = text.rsplit_once(", expected ") else {
        return text;
    };
    // serde quotes the value after its type, as in `invalid type: string "secret"`.
    let type_of_value = actual.split(['"', '`']).next().unwrap_or_default();
    format!("{}, expected {expected}", type_of_value.trim_end())
}

/// Returns the message of an error response on one line, cut, and without the request's token.
pub fn redact_message(text: &str, token: Option<&str>) -> String {
    let redacted = token.map(|token| text.replace(token, "[token]"));
    let line = one_line(redacted.as_deref().unwrap_or(text).trim());
    line.chars().take(MESSAGE_LIMIT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::types::{Container, Pod};

    #[test]
    fn error_does_not_quote_an_invalid_value() {
        let env = r#"{"env":[{"name":"A","value":1234}]}"#;
        let cases = [
            (r#"{"env":"a, expected secret"}"#, "string, expected a sequence at line 1 column 27"),
            (env, "integer, expected a string at line 1 column 32"),
            (r#"{"env":{}}"#, "map, expected a sequence at line 1 column 7"),
        ];
        for (text, expected) in cases {
            let error = decode_object::<Container>(text.as_bytes()).unwrap_err();
            assert_eq!(describe_json_error(&error), format!("invalid type: {expected}"), "{text}");
        }
        let error = decode_object::<Pod>(b"{}").unwrap_err();
        assert_eq!(describe_json_error(&error), "missing field `metadata` at line 1 column 2");
    }
}
