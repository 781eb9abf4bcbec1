//! JSON without characters that any client treats as the end of a line.
//!
//! In server-sent events and NDJSON only LF and CR end a line, and JSON escapes both. But some
//! clients split at every Unicode line end, for example Python's httpx (`iter_lines`). They would
//! split an object at a U+2028 in an annotation of a node. Such characters are therefore escaped.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Line ends of Unicode (UAX #14, classes BK and NL), except control characters, which JSON escapes
/// anyway.
const LINE_ENDS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// Compact JSON with [`LINE_ENDS`] escaped.
struct OneLineFormatter;

impl Formatter for OneLineFormatter {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((index, end)) = next_end(rest) {
            writer.write_all(&rest.as_bytes()[..index])?;
            write!(writer, "\\u{:04x}", u32::from(end))?;
            rest = &rest[index + end.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

fn next_end(text: &str) -> Option<(usize, char)> {
    // nearly every text is short ASCII, and this check is much faster than decoding characters
    if text.bytes().fold(0, |all, byte| all | byte).is_ascii() {
        return None;
    }
    text.char_indices().find(|(_, character)| LINE_ENDS.contains(character))
}

/// Appends a value as one line, without the line end.
///
/// # Errors
/// Fails only if the value cannot be JSON, for example a map with keys that are not texts. The
/// bytes written until then remain.
pub(crate) fn append_line(bytes: &mut Vec<u8>, value: &impl Serialize) -> Result<(), serde_json::Error> {
    value.serialize(&mut Serializer::with_formatter(bytes, OneLineFormatter))
}

#[cfg(test)]
mod tests {
    use crate::api::paging::one_line::append_line;

    #[test]
    fn a_json_line_contains_no_line_ends() {
        let text = "a\u{2028}b\u{2029}\u{85}ü\u{2028}\n\r\u{b}\u{c}\u{1c}\u{1d}\u{1e}\"\\";
        let mut bytes = Vec::new();
        append_line(&mut bytes, &[(text, 1)]).unwrap();
        let line = String::from_utf8(bytes).unwrap();
        assert_eq!(line, r#"[["a\u2028b\u2029\u0085ü\u2028\n\r\u000b\f\u001c\u001d\u001e\"\\",1]]"#);
        assert_eq!(serde_json::from_str::<Vec<(String, i32)>>(&line).unwrap(), [(text.to_owned(), 1)]);
    }
}
