//! Templates: cuts a value into literals, which neighbouring values share, and holes.
//!
//! In JSON, a hole is the content of a string, or a run of digits outside of strings. Keys are
//! literals, except for addresses, by which services name their backends. In labels
//! (`source:key=value;…`), a hole is the part after `=`. In order, the literals and the contents of
//! the holes are exactly the value, for any bytes.

use std::ops::Range;

/// Maximum number of holes. A value with more is kept as it is; a node has about 40.
pub(super) const HOLES_MAX: usize = 128;

/// First bytes of a zstd frame, which is the format of endpoint slices (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Finds the holes of a value, in order. Returns `None` if a template would not help.
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
    let mut position = start;
    loop {
        match value.get(position)? {
            b'"' => return Some(position),
            b'\\' => position += 2,
            _ => position += 1,
        }
    }
}

fn json_holes(value: &[u8], found: &mut Vec<Range<usize>>) -> Option<()> {
    let mut position = 0;
    while let Some(byte) = value.get(position) {
        let hole = match byte {
            b'"' => {
                let Some(end) = text_end(value, position + 1) else { return Some(()) };
                let text = position + 1..end;
                position = end + 1;
                let is_key = value.get(position) == Some(&b':');
                (!is_key || is_address(value.get(text.clone())?)).then_some(text)
            }
            b'0'..=b'9' => {
                let start = position;
                position += value.iter().skip(position).take_while(|byte| byte.is_ascii_digit()).count();
                Some(start..position)
            }
            _ => {
                position += 1;
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
fn is_address(key: &[u8]) -> bool {
    key.first().is_some_and(u8::is_ascii_digit) || key.windows(2).any(|pair| pair == b"::")
}

fn label_holes(value: &[u8], found: &mut Vec<Range<usize>>) -> Option<()> {
    let mut start = 0;
    for label in value.split(|byte| *byte == b';') {
        let end = start + label.len();
        if let Some(equals) = label.iter().position(|byte| *byte == b'=') {
            found.push(start + equals + 1..end);
        }
        if found.len() > HOLES_MAX {
            return None;
        }
        start = end + 1;
    }
    Some(())
}
