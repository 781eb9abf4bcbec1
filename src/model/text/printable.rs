//! Escapes for text from remote clusters, so that it cannot control the terminal.
//!
//! Names, values and error texts come from remote etcds, whose writers choose every character. An
//! escape sequence in one could colour, move or hide what a terminal shows, and a direction mark
//! could change the order of a line. Every command prints through [`printable`].

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns whether a terminal or a browser acts on a character instead of showing it: control
/// characters (C0, DEL and C1), line and paragraph separators, and the marks that change the
/// direction of text (Unicode UAX #9).
#[must_use]
pub fn is_terminal_control(character: char) -> bool {
    character.is_control() || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes the characters that a terminal acts on, except line feeds and tabs. The escapes are
/// those of JSON, such as `\u001b`. A JSON document keeps its meaning, because only its strings
/// contain these characters.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, false)
}

/// Escapes like [`printable`], but keeps colours: `ESC [`, digits and semicolons, `m` (ECMA-48,
/// SGR). The caller must already have escaped all text from remote sources.
#[must_use]
pub fn printable_with_colours(text: &str) -> Cow<'_, str> {
    escaped(text, true)
}

fn escaped(text: &str, keeps_colours: bool) -> Cow<'_, str> {
    let is_escaped = |character: char| is_terminal_control(character) && !matches!(character, '\n' | '\t');
    let Some(first) = text.find(is_escaped) else { return text.into() };
    let (mut out, mut rest) = (text[..first].to_owned(), &text[first..]);
    while let Some(character) = rest.chars().next() {
        let after = &rest[character.len_utf8()..];
        let colour = if keeps_colours && character == '\u{1b}' { colour_length(after) } else { None };
        rest = match colour {
            Some(length) => {
                out.push(character);
                out.push_str(&after[..length]);
                &after[length..]
            }
            None if is_escaped(character) => {
                // writing to a String cannot fail
                let _ = write!(out, "\\u{:04x}", u32::from(character));
                after
            }
            None => {
                out.push(character);
                after
            }
        };
    }
    out.into()
}

/// Returns the text without the colours that [`printable_with_colours`] keeps.
#[must_use]
pub fn without_colours(text: &str) -> Cow<'_, str> {
    let Some((first, mut rest)) = text.split_once('\u{1b}') else { return text.into() };
    let mut out = first.to_owned();
    loop {
        match colour_length(rest) {
            Some(length) => rest = &rest[length..],
            None => out.push('\u{1b}'),
        }
        let Some((plain, next)) = rest.split_once('\u{1b}') else { return (out + rest).into() };
        out.push_str(plain);
        rest = next;
    }
}

/// Returns the number of bytes after `ESC` that belong to a colour.
fn colour_length(after: &str) -> Option<usize> {
    let parameters = after.strip_prefix('[')?;
    let end = parameters.find(|character: char| !character.is_ascii_digit() && character != ';')?;
    parameters[end..].starts_with('m').then_some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sample with escape sequences of every form, DEL, a C1 control, and direction marks.
    const HOSTILE: &str = "a\u{1b}[31mb\u{1b}]0;c\u{7}d\u{7f}e\u{9b}2Jf\u{202e}g\u{2066}h\u{61c}i\u{2028}j\r\u{8}";

    #[test]
    fn only_terminal_controls_are_escaped() {
        let escaped = r"a\u001b[31mb\u001b]0;c\u0007d\u007fe\u009b2Jf\u202eg\u2066h\u061ci\u2028j\u000d\u0008";
        assert_eq!(printable(HOSTILE), escaped);
        assert_eq!(printable(escaped), escaped);
        for plain in ["", "two\nlines\tand a tab", "Zürich 東京 שלום 🚀"] {
            assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain), "{plain}");
        }
    }

    #[test]
    fn escaped_json_has_the_same_content() {
        let document = serde_json::json!({"na\u{202e}me": HOSTILE, "list": ["\u{7f}\n", 1]});
        for text in [document.to_string(), serde_json::to_string_pretty(&document).unwrap()] {
            let printed = printable(&text);
            assert!(!printed.chars().any(|character| is_terminal_control(character) && character != '\n'), "{printed}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), document);
        }
    }

    #[test]
    fn only_colour_sequences_are_kept_or_removed() {
        let coloured = "\u{1b}[31mred\u{1b}[0m \u{1b}[1;33m";
        assert_eq!(printable_with_colours(coloured), coloured);
        assert_eq!(without_colours(coloured), "red ");
        assert_eq!(without_colours("\u{1b}[2Ja\u{1b}[31\u{1b}[0m"), "\u{1b}[2Ja\u{1b}[31");
        assert_eq!(printable_with_colours("\u{1b}[2J\u{1b}[31\u{1b}]0;m\u{1b}"), r"\u001b[2J\u001b[31\u001b]0;m\u001b");
    }
}
