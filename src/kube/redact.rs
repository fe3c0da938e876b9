//! What an answer of the API server says, and no secret of it: an answer may quote the
//! request with its token, and a pod may have passwords where something else belongs.

use serde::de::{DeserializeOwned, Error as _};

/// What is told of an error's text, in characters.
const MESSAGE: usize = 500;
/// What stands for the token.
const HIDDEN: &str = "[token]";

/// serde would also read a struct from a list of its members.
pub fn object<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(serde_json::Error::custom(
            "a list came instead of an object",
        ));
    }
    serde_json::from_slice(bytes)
}

/// What is wrong with a text, without the value at fault, which serde's own words quote.
pub fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let Some((found, wanted)) = text.rsplit_once(", expected ") else {
        return text;
    };
    let found = found.split(['"', '`']).next().unwrap_or_default();
    format!("{}, expected {wanted}", found.trim_end())
}

/// An error's text on one line of bounded length, without the token of the request.
pub fn message(text: &str, token: Option<&str>) -> String {
    let hidden = match token {
        Some(token) => text.replace(token, HIDDEN),
        None => text.to_owned(),
    };
    let line = hidden.trim().chars().take(MESSAGE);
    line.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::types::{Container, Pod};

    #[test]
    fn a_value_at_fault_is_not_quoted() {
        let cases = [
            (
                r#"{"env":"a, expected secret"}"#,
                "invalid type: string, expected a sequence at line 1 column 27",
            ),
            (
                r#"{"env":[{"name":"A","value":1234}]}"#,
                "invalid type: integer, expected a string at line 1 column 32",
            ),
            (
                r#"{"env":{}}"#,
                "invalid type: map, expected a sequence at line 1 column 7",
            ),
        ];
        for (text, wanted) in cases {
            let error = object::<Container>(text.as_bytes()).unwrap_err();
            assert_eq!(problem(&error), wanted, "{text}");
        }
        let missing = object::<Pod>(b"{}").unwrap_err();
        assert_eq!(
            problem(&missing),
            "missing field `metadata` at line 1 column 2"
        );
    }

    #[test]
    fn a_message_is_one_short_line_without_the_token() {
        let text = format!("a\nauthorization: Bearer s3cret\x1b{}", "x".repeat(9999));
        let told = message(&text, Some("s3cret"));
        assert!(
            told.starts_with("a authorization: Bearer [token] x"),
            "{told}"
        );
        assert_eq!(told.chars().count(), MESSAGE);
        assert_eq!(message(" no ", None), "no");
    }
}
