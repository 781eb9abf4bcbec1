//! Types of the values in a client file, with the rules of Go's JSON decoder.
//!
//! `sigs.k8s.io/yaml` converts numbers and booleans to text if a key needs text, but not for the
//! keys of the embedded `clientv3.Config`, such as `username`.

use std::path::PathBuf;

use serde_yaml_ng::{Number, Value};

use super::ClientFileError;

/// Keys of etcd's `clientv3.Config` and of its YAML form (etcd 3.6) that have no effect here.
/// Agents refuse a file in which one of these keys has a value of the wrong type.
const IGNORED_KEYS: [(&str, ValueType); 17] = [
    ("auto-sync-interval", ValueType::Integer),
    ("backoff-jitter-fraction", ValueType::Number),
    ("backoff-wait-between", ValueType::Integer),
    ("ca-file", ValueType::Scalar),
    ("context", ValueType::OnlyNull),
    ("dial-keep-alive-time", ValueType::Integer),
    ("dial-keep-alive-timeout", ValueType::Integer),
    ("dial-timeout", ValueType::Integer),
    ("dialoptions", ValueType::ListOfNulls),
    ("logconfig", ValueType::Mapping),
    ("logger", ValueType::Mapping),
    ("max-unary-retries", ValueType::Natural),
    ("maxcallrecvmsgsize", ValueType::Integer),
    ("maxcallsendmsgsize", ValueType::Integer),
    ("permit-without-stream", ValueType::Flag),
    ("reject-old-cluster", ValueType::Flag),
    ("tls", ValueType::Mapping),
];

/// Expected type of a value, apart from `null`.
#[derive(Clone, Copy)]
enum ValueType {
    Flag,
    /// Includes durations, which are in nanoseconds: `5s` is a string.
    Integer,
    Natural,
    Number,
    Scalar,
    Mapping,
    ListOfNulls,
    OnlyNull,
}

impl ValueType {
    fn accepts(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (Self::Integer, Value::Number(number)) => number.is_i64() || whole(number).is_some_and(|number| number.abs() < 2_f64.powi(63)),
            (Self::Natural, Value::Number(number)) => {
                number.is_u64() || whole(number).is_some_and(|number| (0.0..2_f64.powi(64)).contains(&number))
            }
            (Self::ListOfNulls, Value::Sequence(items)) => items.iter().all(Value::is_null),
            (Self::Scalar, value) => scalar_text(value).is_some(),
            (Self::Flag, Value::Bool(_)) | (Self::Number, Value::Number(_)) | (Self::Mapping, Value::Mapping(_)) => true,
            _ => false,
        }
    }

    /// Returns the type's name for errors.
    fn name(self) -> &'static str {
        match self {
            Self::Flag => FLAG,
            Self::Integer => "a whole number, in nanoseconds if it is a time",
            Self::Natural => "a whole number that is not negative",
            Self::Number => "a number",
            Self::Scalar => "a string",
            Self::Mapping => "a mapping",
            Self::ListOfNulls | Self::OnlyNull => "omitted",
        }
    }
}

const FLAG: &str = "true or false";

/// Returns the number if it is a float without a fractional part, which Go writes as a whole
/// number.
fn whole(number: &Number) -> Option<f64> {
    number.as_f64().filter(|fraction| number.is_f64() && fraction.fract() == 0.0)
}

/// Checks the value of a key that has no effect here.
///
/// # Errors
/// [`ClientFileError::WrongType`].
pub(super) fn check_ignored(key: &str, value: &Value) -> Result<(), ClientFileError> {
    match IGNORED_KEYS.iter().find(|(name, _)| *name == key) {
        Some((key, expected)) if !expected.accepts(value) => Err(ClientFileError::WrongType { key, expected: expected.name() }),
        _ => Ok(()),
    }
}

/// Sets a field whose value must be a YAML string: numbers and booleans are not converted.
pub(super) fn set_text(field: &mut String, key: &'static str, value: &Value) -> Result<(), ClientFileError> {
    match value {
        // null leaves the field unchanged
        Value::Null => {}
        Value::String(text) => field.clone_from(text),
        _ => return Err(ClientFileError::WrongType { key, expected: "a string (quote it if it looks like a number or a boolean)" }),
    }
    Ok(())
}

/// Sets a path, whose value may look like a number or a boolean; an empty path counts as not given.
pub(super) fn set_path(field: &mut Option<PathBuf>, key: &'static str, value: &Value) -> Result<(), ClientFileError> {
    if !value.is_null() {
        let text = scalar_text(value).ok_or(ClientFileError::WrongType { key, expected: "a string" })?;
        *field = (!text.is_empty()).then(|| text.into());
    }
    Ok(())
}

pub(super) fn set_flag(field: &mut bool, key: &'static str, value: &Value) -> Result<(), ClientFileError> {
    match value {
        Value::Null => {}
        Value::Bool(flag) => *field = *flag,
        _ => return Err(ClientFileError::WrongType { key, expected: FLAG }),
    }
    Ok(())
}

/// Returns a list of strings. `null` is an empty list; inside a list it is an empty string.
pub(super) fn string_list(key: &'static str, value: &Value) -> Result<Vec<String>, ClientFileError> {
    let text = |item: &Value| if item.is_null() { Some(String::new()) } else { item.as_str().map(str::to_owned) };
    let texts = match value {
        Value::Null => Some(Vec::new()),
        Value::Sequence(items) => items.iter().map(text).collect(),
        _ => None,
    };
    texts.ok_or(ClientFileError::WrongType { key, expected: "a list of strings" })
}

/// Converts a scalar to text as `sigs.k8s.io/yaml` does for a key that needs text. Floats are
/// rounded to 32 bits, as in Go.
#[allow(clippy::cast_possible_truncation, reason = "sigs.k8s.io/yaml rounds floats to 32 bits")]
pub(super) fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) if number.is_f64() => number.as_f64().map(|number| float_text(number as f32)),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Formats like Go's `FormatFloat` with `'g'` and the shortest digits.
fn float_text(number: f32) -> String {
    let text = format!("{number:e}");
    match text.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?))) {
        Some((digits, exponent)) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_converted_to_text_like_go() {
        for (value, expected) in [
            (Value::from(123), "123"),
            (Value::from(true), "true"),
            (Value::from(1.5), "1.5"),
            (Value::from(123_456.0), "123456"),
            (Value::from(1_234_567.5), "1.2345675e+06"),
            (Value::from(0.00001), "1e-05"),
            (Value::from(1e21), "1e+21"),
        ] {
            assert_eq!(scalar_text(&value).as_deref(), Some(expected));
        }
        assert_eq!(scalar_text(&Value::Null), None);
    }
}
