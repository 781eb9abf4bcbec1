//! JSON that every reader takes for one line.
//!
//! For server-sent events and NDJSON only LF and CR end a line, and JSON escapes both. But readers exist that end lines wherever Unicode
//! does, Python's httpx among them (`iter_lines`): they would tear an object at a U+2028 in some node's annotation. Escaped, as JSON
//! allows, it means the same and tears nothing.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// What ends a line for Unicode (UAX #14, class BK and NL) and is no control character that JSON escapes anyway.
const LINE_ENDS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// Compact, with [`LINE_ENDS`] escaped.
struct OneLine;

impl Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, end)) = next_end(rest) {
            writer.write_all(&rest.as_bytes()[..at])?;
            write!(writer, "\\u{:04x}", u32::from(end))?;
            rest = &rest[at + end.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

fn next_end(text: &str) -> Option<(usize, char)> {
    // nearly every text is ASCII and short, and that is found out much faster than where a character is
    if text.bytes().fold(0, |all, byte| all | byte).is_ascii() {
        return None;
    }
    text.char_indices().find(|(_, character)| LINE_ENDS.contains(character))
}

/// Adds a value as one line, without its end.
///
/// # Errors
/// Only where the value itself cannot be JSON, such as a map with keys that are no texts; what was written of it by then stays.
pub(crate) fn append_line(bytes: &mut Vec<u8>, value: &impl Serialize) -> Result<(), serde_json::Error> {
    value.serialize(&mut Serializer::with_formatter(bytes, OneLine))
}

#[cfg(test)]
mod tests {
    use crate::api::paging::one_line::append_line;

    #[test]
    fn a_line_has_no_end_inside_for_any_reader_and_means_the_same() {
        let text = "a\u{2028}b\u{2029}\u{85}ü\u{2028}\n\r\u{b}\u{c}\u{1c}\u{1d}\u{1e}\"\\";
        let mut bytes = Vec::new();
        append_line(&mut bytes, &[(text, 1)]).unwrap();
        let line = String::from_utf8(bytes).unwrap();
        assert_eq!(line, r#"[["a\u2028b\u2029\u0085ü\u2028\n\r\u000b\f\u001c\u001d\u001e\"\\",1]]"#);
        assert_eq!(serde_json::from_str::<Vec<(String, i32)>>(&line).unwrap(), [(text.to_owned(), 1)]);
    }
}
