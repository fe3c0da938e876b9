//! Quotes text from users and other programs, for logs, errors and Events.

/// Longest quotation in characters, without the quotation marks.
const LIMIT: usize = 100;

/// Returns `text` in quotation marks, on one line and cut to about [`LIMIT`] characters. Escapes
/// control characters and characters that change the text direction.
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
    fn a_quotation_of_any_text_is_short_and_on_one_line() {
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
