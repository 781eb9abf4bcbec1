//! Resolves the types of scalars by the rules of go-yaml 2 (`resolve.go`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_yaml_ng::Value;

/// Full form of the prefix `!!` in YAML's own tags.
const TAG_PREFIX: &str = "tag:yaml.org,2002:";

/// Returns the value of a scalar that is not quoted or has a tag. `None` if it does not match the
/// tag.
pub(super) fn resolve(tag: Option<&str>, text: String) -> Option<Value> {
    let Some(tag) = tag else { return Some(plain(&text).unwrap_or(Value::String(text))) };
    match tag.strip_prefix(TAG_PREFIX) {
        Some("bool") => plain(&text).filter(Value::is_bool),
        Some("null") => plain(&text).filter(Value::is_null),
        Some("int") => plain(&text).filter(|value| value.is_i64() || value.is_u64()),
        Some("float") => plain(&text).filter(Value::is_number),
        Some("timestamp") => is_date(&text).then_some(Value::String(text)),
        Some("binary") => {
            let encoded: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
            let bytes = BASE64.decode(encoded).ok()?;
            Some(Value::String(String::from_utf8_lossy(&bytes).into_owned()))
        }
        // the tag of strings, or an unknown one
        _ => Some(Value::String(text)),
    }
}

/// Returns the value of a plain scalar that is not a string.
fn plain(text: &str) -> Option<Value> {
    let value = match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => true.into(),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => false.into(),
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        ".nan" | ".NaN" | ".NAN" => f64::NAN.into(),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => f64::INFINITY.into(),
        "-.inf" | "-.Inf" | "-.INF" => f64::NEG_INFINITY.into(),
        _ => return number(text),
    };
    Some(value)
}

fn number(text: &str) -> Option<Value> {
    match text.as_bytes().first()? {
        b'.' => float(text),
        b'0'..=b'9' | b'+' | b'-' => {
            let text = text.replace('_', "");
            integer(&text).or_else(|| float(&text))
        }
        _ => None,
    }
}

/// Parses an integer as Go's `ParseInt` and `ParseUint` with base 0 do.
fn integer(text: &str) -> Option<Value> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (Some("-"), &text[1..]),
        b'+' => (Some(""), &text[1..]),
        _ => (None, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let signed = i64::from_str_radix(&format!("{}{digits}", sign.unwrap_or_default()), base).ok().map(Value::from);
    signed.or_else(|| if sign.is_none() { u64::from_str_radix(digits, base).ok().map(Value::from) } else { None })
}

/// Parses a decimal fraction. A number that is too large remains a string, because Go's
/// `ParseFloat` rejects it.
fn float(text: &str) -> Option<Value> {
    let is_decimal =
        text.bytes().any(|byte| byte.is_ascii_digit()) && text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number: f64 = text.parse().ok().filter(|_| is_decimal)?;
    number.is_finite().then(|| number.into())
}

/// Returns `true` if a text begins like a date. Only the tag of dates needs this, because the value
/// is a string either way.
fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let mut next = |lengths: std::ops::RangeInclusive<usize>| {
        parts.next().is_some_and(|part| lengths.contains(&part.bytes().take_while(u8::is_ascii_digit).count()))
    };
    next(4..=4) && next(1..=2) && next(1..=2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_have_the_types_of_go_yaml() {
        let text = |text: &str| Value::String(text.to_owned());
        for (scalar, expected) in [
            ("yes", true.into()),
            ("Off", false.into()),
            ("yEs", text("yEs")),
            ("", Value::Null),
            ("~", Value::Null),
            ("12", 12.into()),
            ("+12", 12.into()),
            ("-1_000", (-1000).into()),
            ("0x1F", 31.into()),
            ("-0b11", (-3).into()),
            ("0o17", 15.into()),
            ("017", 15.into()),
            ("08", 8.0.into()),
            ("0xZZ", text("0xZZ")),
            ("0x+1", text("0x+1")),
            ("18446744073709551615", u64::MAX.into()),
            ("1.5", 1.5.into()),
            (".5", 0.5.into()),
            ("1e3", 1000.0.into()),
            ("1e999", text("1e999")),
            ("1:20", text("1:20")),
            ("2001-01-01", text("2001-01-01")),
            ("-", text("-")),
            ("+", text("+")),
            (".", text(".")),
            ("infinity", text("infinity")),
            ("-inf", text("-inf")),
        ] {
            assert_eq!(resolve(None, scalar.to_owned()), Some(expected), "{scalar}");
        }
    }

    #[test]
    fn tagged_scalars_must_match_their_tag() {
        for (tag, scalar, expected) in [
            ("str", "12", Some("12".into())),
            ("bool", "yes", Some(true.into())),
            ("int", "yes", None),
            ("float", "1", Some(1.into())),
            ("null", "x", None),
            ("binary", "aGVs\nbG8=", Some("hello".into())),
            ("binary", "?", None),
            ("timestamp", "2001-1-1", Some("2001-1-1".into())),
            ("timestamp", "x", None),
            ("other", "12", Some("12".into())),
        ] {
            assert_eq!(resolve(Some(&format!("{TAG_PREFIX}{tag}")), scalar.to_owned()), expected, "{tag} {scalar}");
        }
        assert_eq!(resolve(Some("!x"), "12".to_owned()), Some("12".into()));
    }
}
