//! Cuts and quotes text from users and other programs, for logs, errors and Events.

/// Longest quotation in characters, without the quotation marks.
const LIMIT: usize = 100;
/// Longest quotation in bytes, so that an error with two quotations stays below 1 kB.
const BYTE_LIMIT: usize = 300;

/// Cuts `text` to [`LIMIT`] characters and [`BYTE_LIMIT`] bytes. An ellipsis marks the cut.
pub fn cut(text: &str) -> String {
    // The text is cut after the last character whose end is within both limits.
    let ends = text.char_indices().map(|(start, c)| start + c.len_utf8());
    match ends.take(LIMIT).take_while(|&end| end <= BYTE_LIMIT).last() {
        Some(end) if end < text.len() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

/// Returns `text` on one line: control characters become blanks, and characters that change the
/// text direction are dropped, so that text from outside can neither start a line nor control a
/// terminal.
pub fn one_line(text: &str) -> String {
    let visible = text.chars().filter(|&c| !changes_direction(c));
    visible.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Whether the character is one of Unicode's Bidi_Control characters.
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns `text` in quotation marks, on one line and cut like [`cut`]. Escapes control characters
/// and characters that change the text direction.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    let mut length = 0;
    for c in text.chars() {
        if length >= LIMIT || quoted.len() > BYTE_LIMIT {
            quoted.push('…');
            break;
        }
        match c {
            // An apostrophe needs no escape between these quotation marks.
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
        for (text, expected) in [
            ("http", "\"http\""),
            ("", "\"\""),
            ("it's", "\"it's\""),
            ("a\"b\\", "\"a\\\"b\\\\\""),
            ("a\nb\u{1b}[31m", "\"a\\nb\\u{1b}[31m\""),
            ("\u{202e}80", "\"\\u{202e}80\""),
            ("８０", "\"８０\""),
        ] {
            assert_eq!(quote(text), expected);
        }
        let exact = "x".repeat(LIMIT);
        assert_eq!(quote(&exact), format!("\"{exact}\""));
        assert_eq!(quote(&"x".repeat(LIMIT + 1)), format!("\"{exact}…\""));
        let longest = quote(&"\u{10ffff}".repeat(5000));
        assert!(longest.chars().count() < LIMIT + 15, "{longest}");
        let widest = quote(&"\u{1f980}".repeat(5000));
        assert!(widest.len() < BYTE_LIMIT + 15, "{widest}");
    }

    #[test]
    fn one_line_has_no_control_and_no_direction_characters() {
        assert_eq!(one_line("a\nb\u{1b}[31m\u{9b}"), "a b [31m ");
        assert_eq!(one_line("\u{202e}8\u{2066}0\u{200f}\u{2069}"), "80");
    }

    #[test]
    fn a_cut_text_ends_with_an_ellipsis_and_is_not_cut_twice() {
        let exact = "x".repeat(LIMIT);
        assert_eq!(cut(&exact), exact);
        assert_eq!(cut(&"x".repeat(LIMIT + 1)), format!("{exact}…"));
        for text in ["", "a", &"x".repeat(500), &"é1".repeat(500), &"\u{1f980}".repeat(500)] {
            let once = cut(text);
            assert!(once.len() <= BYTE_LIMIT + '…'.len_utf8(), "{once}");
            assert_eq!(cut(&once), once);
            assert_eq!(quote(&once), quote(text));
        }
    }
}
