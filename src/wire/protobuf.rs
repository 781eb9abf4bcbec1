//! A reader for the proto2 wire format, with the semantics of Go's generated code, as far as
//! endpoint slices need it.
//!
//! prost, which is among the dependencies, does not bound repeated fields: a few kilobytes of zstd
//! that unpack to 16 MiB of empty messages would become gigabytes of structs. This reader counts
//! every element against a budget.

/// Maximum number of elements (messages, strings, map entries) of a value: a hundred times the
/// 1,000 endpoints that Kubernetes allows in a slice (`pkg/apis/discovery/validation`). They need
/// at most some 25 MB.
const ELEMENTS_MAX: usize = 100_000;

/// Maximum length of a varint: 64 bits in groups of 7.
const VARINT_BYTES_MAX: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldContent<'a> {
    /// An integer or a bool.
    Varint(u64),
    /// A string, a message or a map entry.
    Bytes(&'a [u8]),
    /// A fixed-width number. No known field has this type.
    Fixed,
    /// A group, deprecated since proto2. No known field has this type.
    Group,
}

/// Number of elements that a value may still have.
#[derive(Debug)]
pub(super) struct ElementBudget(usize);

impl ElementBudget {
    pub(super) fn new() -> Self {
        Self(ELEMENTS_MAX)
    }
}

/// Reads a message and calls `field` with the number and content of each field. `field` must ignore
/// unknown numbers.
pub(super) fn read_message<'a>(
    mut bytes: &'a [u8],
    budget: &mut ElementBudget,
    mut field: impl FnMut(u64, FieldContent<'a>, &mut ElementBudget) -> Result<(), String>,
) -> Result<(), String> {
    while !bytes.is_empty() {
        let tag = read_varint(&mut bytes)?;
        let (number, wire_type) = (tag >> 3, tag & 7);
        if number == 0 {
            return Err("protobuf field 0 does not exist".into());
        }
        let content = match wire_type {
            0 => FieldContent::Varint(read_varint(&mut bytes)?),
            1 => read_bytes(&mut bytes, 8).map(|_| FieldContent::Fixed)?,
            2 => {
                let length = usize::try_from(read_varint(&mut bytes)?).map_err(|_| truncated())?;
                FieldContent::Bytes(read_bytes(&mut bytes, length)?)
            }
            3 => skip_group(&mut bytes).map(|()| FieldContent::Group)?,
            5 => read_bytes(&mut bytes, 4).map(|_| FieldContent::Fixed)?,
            other => return Err(format!("protobuf field {number} has the wire type {other}, which cannot start a field")),
        };
        if matches!(content, FieldContent::Bytes(_)) {
            budget.0 = budget.0.checked_sub(1).ok_or_else(|| format!("more than {ELEMENTS_MAX} elements"))?;
        }
        field(number, content, budget)?;
    }
    Ok(())
}

impl<'a> FieldContent<'a> {
    /// Returns the bytes of a string, message or map entry.
    pub(super) fn bytes(self, name: &str) -> Result<&'a [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Fixed | Self::Group => Err(format!("{name} has the wrong wire type")),
        }
    }

    /// Returns a string. Invalid UTF-8 becomes U+FFFD.
    pub(super) fn text(self, name: &str) -> Result<String, String> {
        self.bytes(name).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Returns the low 32 bits of an integer, as Go's `int32` and `uint32` do.
    pub(super) fn integer(self, name: &str) -> Result<u32, String> {
        match self {
            Self::Varint(number) => Ok(u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default()),
            Self::Bytes(_) | Self::Fixed | Self::Group => Err(format!("{name} has the wrong wire type")),
        }
    }

    pub(super) fn boolean(self, name: &str) -> Result<bool, String> {
        match self {
            Self::Varint(number) => Ok(number != 0),
            Self::Bytes(_) | Self::Fixed | Self::Group => Err(format!("{name} has the wrong wire type")),
        }
    }

    /// Decodes a map entry: a message with the key in field 1 and the value in field 2.
    pub(super) fn entry(self, name: &str, budget: &mut ElementBudget) -> Result<(String, String), String> {
        let (mut key, mut value) = (String::new(), String::new());
        read_message(self.bytes(name)?, budget, |number, field, _| {
            match number {
                1 => key = field.text(name)?,
                2 => value = field.text(name)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok((key, value))
    }
}

/// Skips the fields and the end of a group, with nested groups. An end closes the innermost group
/// whatever its number is, as in Go's generated code (`skipGenerated`).
fn skip_group(bytes: &mut &[u8]) -> Result<(), String> {
    let mut depth = 1_usize;
    while depth > 0 {
        match read_varint(bytes)? & 7 {
            0 => drop(read_varint(bytes)?),
            1 => drop(read_bytes(bytes, 8)?),
            2 => {
                let length = usize::try_from(read_varint(bytes)?).map_err(|_| truncated())?;
                read_bytes(bytes, length)?;
            }
            3 => depth += 1,
            4 => depth -= 1,
            5 => drop(read_bytes(bytes, 4)?),
            other => return Err(format!("a protobuf group has the invalid wire type {other}")),
        }
    }
    Ok(())
}

fn read_varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0_u64;
    for index in 0..VARINT_BYTES_MAX {
        let (first, rest) = bytes.split_first().ok_or_else(truncated)?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << (7 * index);
        if first & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err("a protobuf number is too long".into())
}

fn read_bytes<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], String> {
    let (content, rest) = bytes.split_at_checked(length).ok_or_else(truncated)?;
    *bytes = rest;
    Ok(content)
}

fn truncated() -> String {
    "the protobuf message is incomplete".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u64, FieldContent<'_>)>, String> {
        let mut fields = Vec::new();
        read_message(bytes, &mut ElementBudget::new(), |number, field, _| {
            fields.push((number, field));
            Ok(())
        })?;
        Ok(fields)
    }

    #[test]
    fn fields_are_read_by_their_wire_types() {
        assert_eq!(read(b"\x08\x96\x01\x12\x02hi"), Ok(vec![(1, FieldContent::Varint(150)), (2, FieldContent::Bytes(b"hi"))]));
        assert_eq!(read(b"\x09\0\0\0\0\0\0\0\0\x15\0\0\0\0"), Ok(vec![(1, FieldContent::Fixed), (2, FieldContent::Fixed)]));
        // nested groups with each wire type in them
        let groups = b"\x5b\x08\x96\x01\x09\0\0\0\0\0\0\0\0\x12\x02hi\x15\0\0\0\0\x63\x64\x5c\x08\x01";
        assert_eq!(read(groups), Ok(vec![(11, FieldContent::Group), (1, FieldContent::Varint(1))]));
        assert_eq!(read(b""), Ok(vec![]));
        for (bytes, reason) in [
            (&b"\x08"[..], "the protobuf message is incomplete"),
            (b"\x12\x05hi", "the protobuf message is incomplete"),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "the protobuf message is incomplete"),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a protobuf number is too long"),
            (b"\x0b", "the protobuf message is incomplete"),
            (b"\x0b\x13\x0c", "the protobuf message is incomplete"),
            (b"\x0c", "protobuf field 1 has the wire type 4, which cannot start a field"),
            (b"\x0f", "protobuf field 1 has the wire type 7, which cannot start a field"),
            (b"\x0b\x0e\x0c", "a protobuf group has the invalid wire type 6"),
            (b"\x00\x00", "protobuf field 0 does not exist"),
        ] {
            assert_eq!(read(bytes), Err(reason.to_owned()));
        }
    }

    #[test]
    fn elements_are_bounded() {
        assert!(read(&b"\x42\x00".repeat(ELEMENTS_MAX)).is_ok());
        assert_eq!(read(&b"\x42\x00".repeat(ELEMENTS_MAX + 1)), Err("more than 100000 elements".into()));
    }
}
