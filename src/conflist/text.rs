//! The text of a network config: its bytes as a string, without loss. Pure.
//!
//! Container runtimes load network configs that are not UTF-8, because Go's decoder accepts invalid
//! bytes inside JSON strings. The agent must chain such a file and restore it byte for byte. So each
//! invalid byte becomes one of the last characters of Unicode, which are for private use. JSON allows
//! them where Go allows the bytes: inside strings only.

/// Character that stands for the byte 0. Only bytes from 0x80 can be invalid.
const FIRST: u32 = 0x10_FF00;

/// Returns the text of a file that contains `bytes`.
pub fn from_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match byte_of(character) {
                // The file itself contains such a character: its bytes are escaped too.
                Some(_) => push_escaped(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes()),
                None => text.push(character),
            }
        }
        push_escaped(&mut text, chunk.invalid());
    }
    text
}

/// Returns the bytes of the file whose text is `text`.
pub fn to_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match byte_of(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    text.extend(bytes.iter().filter_map(|byte| char::from_u32(FIRST + u32::from(*byte))));
}

/// Returns the byte that `character` stands for, if it stands for one.
fn byte_of(character: char) -> Option<u8> {
    let byte = u32::from(character).checked_sub(FIRST)?;
    u8::try_from(byte).ok().filter(|byte| !byte.is_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_become_text_and_the_same_bytes_again() {
        let every_byte: Vec<u8> = (0..=255).collect();
        for bytes in [
            &b""[..],
            b"{\"name\":\"net\"}",
            "é\u{fffd}\u{10fefe}".as_bytes(),
            b"{\"name\":\"\xff\xc3(\xe2\x82\"}",
            "\u{10ff80}\u{10ffff}".as_bytes(),
            b"\xf4\x8f\xbe\x80\xff",
            &every_byte,
        ] {
            let text = from_bytes(bytes);
            assert_eq!(to_bytes(&text), bytes, "{text:?}");
        }
    }

    #[test]
    fn invalid_bytes_are_valid_json_inside_strings_only() {
        let value = |bytes: &[u8]| serde_json::from_str::<serde_json::Value>(&from_bytes(bytes));
        assert!(value(b"{\"a\":\"\xff\"}").is_ok());
        for invalid in [&b"{\"a\":\xff}"[..], b"\xff{}", b"{}\xff", b"\xef\xbb\xbf{}"] {
            assert!(value(invalid).is_err(), "{invalid:?}");
        }
    }
}
