//! Templates: cuts a value into literals, which neighbouring values share, and holes.
//!
//! In JSON, a hole is the content of a string, or a run of digits outside of strings. Keys are
//! literals, except for addresses, by which services name their backends. In labels
//! (`source:key=value;…`), a hole is the part after `=`. The literals and holes in order are the
//! value again, whatever bytes it has.

use std::ops::Range;

/// Maximum number of holes. A value with more is kept as it is; a node has some 40.
pub(super) const HOLES_MAX: usize = 128;

/// First bytes of a zstd frame, which is the format of endpoint slices (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Finds the holes of a value, in order. `None` if a template would not help.
pub(super) fn holes(value: &[u8], found: &mut Vec<Range<usize>>) -> Option<()> {
    found.clear();
    // neighbouring frames have no parts in common
    if value.starts_with(&ZSTD_MAGIC) {
        return None;
    }
    if value.first() == Some(&b'{') { json_holes(value, found) } else { label_holes(value, found) }
}

/// Returns the end of a string whose content begins at `start`.
fn text_end(value: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        match value.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn json_holes(value: &[u8], found: &mut Vec<Range<usize>>) -> Option<()> {
    let mut at = 0;
    while let Some(byte) = value.get(at) {
        let hole = match byte {
            b'"' => {
                let Some(end) = text_end(value, at + 1) else { return Some(()) };
                let text = at + 1..end;
                at = end + 1;
                let is_key = value.get(at) == Some(&b':');
                (!is_key || names_address(value.get(text.clone())?)).then_some(text)
            }
            b'0'..=b'9' => {
                let start = at;
                at += value.iter().skip(at).take_while(|byte| byte.is_ascii_digit()).count();
                Some(start..at)
            }
            _ => {
                at += 1;
                None
            }
        };
        found.extend(hole);
        if found.len() > HOLES_MAX {
            return None;
        }
    }
    Some(())
}

/// Returns `true` if a key is an address and not a field's name. A wrong result only costs some
/// bytes.
fn names_address(key: &[u8]) -> bool {
    key.first().is_some_and(u8::is_ascii_digit) || key.windows(2).any(|pair| pair == b"::")
}

fn label_holes(value: &[u8], found: &mut Vec<Range<usize>>) -> Option<()> {
    let mut at = 0;
    for label in value.split(|byte| *byte == b';') {
        let end = at + label.len();
        if let Some(equals) = label.iter().position(|byte| *byte == b'=') {
            found.push(at + equals + 1..end);
        }
        if found.len() > HOLES_MAX {
            return None;
        }
        at = end + 1;
    }
    Some(())
}
