//! Quotes text that others wrote, for logs, errors and Events.

/// Longest quotation in characters, without its quotes.
const LIMIT: usize = 100;

/// Returns `text` in quotes, on one line and at most about [`LIMIT`] characters long.
/// Control characters and those that change the direction of text are escaped.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    let mut length = 0;
    for c in text.chars() {
        if length >= LIMIT {
            quoted.push('…');
            break;
        }
        match c {
            '\'' => quoted.push(c),
            c => quoted.extend(c.escape_debug()),
        }
        length += c.escape_debug().count();
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quotation_is_short_and_on_one_line_whatever_is_quoted() {
        for (text, wanted) in [
            ("http", "\"http\""),
            ("", "\"\""),
            ("it's", "\"it's\""),
            ("a\"b\\", "\"a\\\"b\\\\\""),
            ("a\nb\u{1b}[31m", "\"a\\nb\\u{1b}[31m\""),
            ("\u{202e}80", "\"\\u{202e}80\""),
            ("８０", "\"８０\""),
        ] {
            assert_eq!(quote(text), wanted);
        }
        let exact = "x".repeat(LIMIT);
        assert_eq!(quote(&exact), format!("\"{exact}\""));
        assert_eq!(quote(&"x".repeat(LIMIT + 1)), format!("\"{exact}…\""));
        let longest = quote(&"\u{10ffff}".repeat(5000));
        assert!(longest.chars().count() < LIMIT + 15, "{longest}");
    }
}
