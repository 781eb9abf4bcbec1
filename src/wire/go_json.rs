//! A JSON reader with the semantics of Go's `encoding/json`, with which every agent reads these
//! values.
//!
//! - A struct key matches a field exactly, or otherwise without regard to case. Map keys match
//!   exactly. Unknown keys are skipped.
//! - `null` leaves scalars, strings and structs as they are, and empties pointers, lists and maps.
//! - A repeated key is read into the existing value: it replaces scalars and lists, and merges maps
//!   and structs.
//! - Bytes that are not UTF-8 and escapes of lone surrogates become U+FFFD.
//!
//! serde's derive rejects repeated keys and cannot ignore case, hence the small trait and the
//! macro.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Length of `\uXXXX`.
const ESCAPE_LENGTH: usize = 6;

/// A type that JSON can be read into.
pub(super) trait GoValue: Default {
    /// Reads JSON into the existing value.
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error>;
}

/// A struct with a JSON name for each field. [`go_struct!`] implements it.
pub(super) trait GoStruct: Default {
    type Field: Copy;

    /// Returns the field that a key names.
    fn field(key: &str) -> Option<Self::Field>;

    /// Returns the JSON name of a field.
    fn name(field: Self::Field) -> &'static str;

    fn read_field<'de, A: MapAccess<'de>>(&mut self, field: Self::Field, map: &mut A) -> Result<(), A::Error>;
}

/// Declares structs that are read as in Go: `field: Type = "name in JSON"`. Each struct needs one
/// line of documentation.
macro_rules! go_struct {
    ($(#[doc = $doc:literal] struct $name:ident { $($field:ident: $type:ty = $json:literal,)+ })+) => {$(
        #[doc = $doc]
        #[derive(Debug, Default)]
        pub(super) struct $name { $(pub(super) $field: $type,)+ }

        const _: () = {
            #[derive(Clone, Copy)]
            #[expect(non_camel_case_types, reason = "named after the fields")]
            pub(in crate::wire) enum KnownField { $($field),+ }

            impl $crate::wire::go_json::GoStruct for $name {
                type Field = KnownField;

                #[inline]
                fn field(key: &str) -> Option<KnownField> {
                    match key {
                        $($json => Some(KnownField::$field),)+
                        _ => [$(($json, KnownField::$field)),+].into_iter().find(|(name, _)| $crate::wire::go_json::matches_name(name, key)).map(|(_, field)| field),
                    }
                }

                fn name(field: KnownField) -> &'static str {
                    match field {
                        $(KnownField::$field => $json,)+
                    }
                }

                #[inline]
                fn read_field<'de, A: serde::de::MapAccess<'de>>(&mut self, field: KnownField, map: &mut A) -> Result<(), A::Error> {
                    match field {
                        $(KnownField::$field => map.next_value_seed($crate::wire::go_json::GoDestination(&mut self.$field)),)+
                    }
                }
            }
        };

        impl $crate::wire::go_json::GoValue for $name {
            fn read<'de, D: serde::Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
                input.deserialize_any($crate::wire::go_json::GoDestination(self))
            }
        }
    )+};
}
pub(super) use go_struct;

/// Returns `true` if a key matches a field's name without regard to case. Go also folds `ſ` to `s`
/// and the Kelvin sign to `k` (`foldName` in `encoding/json/fold.go`).
pub(super) fn matches_name(name: &str, key: &str) -> bool {
    let folded = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.eq_ignore_ascii_case(key) || (!key.is_ascii() && key.chars().map(folded).eq(name.chars().map(folded)))
}

/// Replaces every escape of a lone surrogate in JSON by that of U+FFFD, as Go does (`unquoteBytes`
/// in `encoding/json/decode.go`).
fn replace_lone_surrogates(text: Cow<'_, str>) -> Cow<'_, str> {
    let mut lone = Vec::new();
    let mut position = 0;
    while let Some(offset) = memchr::memchr(b'\\', &text.as_bytes()[position..]) {
        position += offset;
        let unit =
            |start: usize| text.get(start..start + ESCAPE_LENGTH)?.strip_prefix("\\u").and_then(|hex| u16::from_str_radix(hex, 16).ok());
        position += match (unit(position), unit(position + ESCAPE_LENGTH)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 2 * ESCAPE_LENGTH,
            (Some(0xd800..0xe000), _) => {
                lone.push(position);
                ESCAPE_LENGTH
            }
            // the escaped character can be a backslash, which must not start another escape
            _ => 2,
        };
        position = position.min(text.len());
    }
    if lone.is_empty() {
        return text;
    }
    let mut text = text.into_owned();
    lone.into_iter().for_each(|start| text.replace_range(start..start + ESCAPE_LENGTH, "\\ufffd"));
    Cow::Owned(text)
}

/// Parses a whole document. `what` names it in errors.
pub(super) fn parse<T: GoValue>(what: &str, bytes: &[u8]) -> Result<T, String> {
    // `from_utf8_lossy` alone is slower: it inspects single bytes even if all of them are valid
    let text = str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
    let text = replace_lone_surrogates(text);
    let mut input = serde_json::Deserializer::from_str(&text);
    let mut value = T::default();
    value.read(&mut input).and_then(|()| input.end()).map_err(|error| format!("value is not the JSON of {what}: {error}"))?;
    Ok(value)
}

/// Reads a string and parses it. `null` is `None`.
pub(super) fn read_text<'de, D: Deserializer<'de>, T>(
    input: D,
    expected: &'static str,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    input.deserialize_any(TextVisitor { expected, parse })
}

/// Destination of a read: the seed for any value, and the visitor for structs.
pub(super) struct GoDestination<'a, T>(pub(super) &'a mut T);

impl<'de, T: GoValue> DeserializeSeed<'de> for GoDestination<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        self.0.read(input)
    }
}

impl<'de, T: GoStruct> Visitor<'de> for GoDestination<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key_seed(FieldName::<T>(PhantomData))? {
            match field {
                Some(field) => {
                    self.0.read_field(field, &mut map).map_err(|error| Error::custom(format_args!("{}: {error}", T::name(field))))?;
                }
                None => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// Seed that reads a key and finds its field without copying the key.
struct FieldName<T>(PhantomData<T>);

impl<'de, T: GoStruct> DeserializeSeed<'de> for FieldName<T> {
    type Value = Option<T::Field>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_str(self)
    }
}

impl<T: GoStruct> Visitor<'_> for FieldName<T> {
    type Value = Option<T::Field>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(T::field(key))
    }
}

struct TextVisitor<T> {
    expected: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for TextVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        (self.parse)(text).map(Some).map_err(Error::custom)
    }
}

/// Implements [`GoValue`] for types that `null` leaves as they are and any other value replaces.
macro_rules! scalars {
    ($($type:ty),+) => {$(
        impl GoValue for $type {
            fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
                if let Some(value) = Option::<$type>::deserialize(input)? {
                    *self = value;
                }
                Ok(())
            }
        }
    )+};
}
scalars!(bool, u8, u16, u32);

/// Visitor of types that accept `null`. `null` leaves a string as it is, and empties Go's pointers,
/// slices and maps.
struct NullableVisitor<'a, T>(&'a mut T);

/// Reuses the string's buffer, because values consist mostly of strings.
impl GoValue for String {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(NullableVisitor(self))
    }
}

impl Visitor<'_> for NullableVisitor<'_, String> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        text.clone_into(self.0);
        Ok(())
    }
}

impl<T: GoValue> GoValue for Option<T> {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        input.deserialize_option(NullableVisitor(self))
    }
}

impl<'de, T: GoValue> Visitor<'de> for NullableVisitor<'_, Option<T>> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        *self.0 = None;
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        self.0.get_or_insert_default().read(input)
    }
}

impl<T: GoValue> GoValue for Vec<T> {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        self.clear();
        input.deserialize_any(NullableVisitor(self))
    }
}

impl<'de, T: GoValue> Visitor<'de> for NullableVisitor<'_, Vec<T>> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        let mut element = T::default();
        while sequence.next_element_seed(GoDestination(&mut element))?.is_some() {
            self.0.push(std::mem::take(&mut element));
        }
        Ok(())
    }
}

impl<T: GoValue> GoValue for BTreeMap<String, T> {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(NullableVisitor(self))
    }
}

impl<'de, T: GoValue> Visitor<'de> for NullableVisitor<'_, BTreeMap<String, T>> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.clear();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let mut value = T::default();
            map.next_value_seed(GoDestination(&mut value))?;
            self.0.insert(key, value);
        }
        Ok(())
    }
}

/// A map with its entries in key order, which is the order that Go writes. It needs one allocation
/// for all entries; a `BTreeMap` needs one for every few.
#[derive(Debug)]
pub(super) struct SortedMap<T>(pub(super) Vec<(String, T)>);

impl<T> Default for SortedMap<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: GoValue> GoValue for SortedMap<T> {
    fn read<'de, D: Deserializer<'de>>(&mut self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(NullableVisitor(self))
    }
}

impl<'de, T: GoValue> Visitor<'de> for NullableVisitor<'_, SortedMap<T>> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.0.clear();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let SortedMap(entries) = self.0;
        while let Some(key) = map.next_key::<String>()? {
            let mut value = T::default();
            map.next_value_seed(GoDestination(&mut value))?;
            entries.push((key, value));
        }
        if !entries.is_sorted_by(|(one, _), (next, _)| one < next) {
            // the last value of a repeated key wins
            entries.reverse();
            entries.sort_by(|(one, _), (other, _)| one.cmp(other));
            entries.dedup_by(|(later, _), (first, _)| later == first);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    go_struct! {
        /// A struct with one field of each type.
        struct OuterJson {
            text: String = "text",
            number: u8 = "Number",
            switch: Option<bool> = "switch",
            list: Vec<InnerJson> = "list",
            map: BTreeMap<String, InnerJson> = "map",
            inner: InnerJson = "inner",
            entries: SortedMap<InnerJson> = "entries",
        }
        /// A struct with two fields that differ only in case.
        struct InnerJson {
            small: u32 = "a",
            capital: u32 = "A",
        }
    }

    fn outer(json: &str) -> String {
        parse::<OuterJson>("a test", json.as_bytes()).map_or_else(|error| error, |value| format!("{value:?}"))
    }

    fn assert_same(left: &str, right: &str) {
        assert_eq!(outer(left), outer(right), "{left}");
        assert!(outer(left).starts_with("OuterJson"), "{}", outer(left));
    }

    #[test]
    fn values_are_read_as_in_go() {
        for nothing in
            ["null", r#"{"text":null,"Number":null,"switch":null,"list":null,"map":null,"inner":null}"#, r#"{"other":[{}]}"#, " {} "]
        {
            assert_same(nothing, "{}");
        }
        assert_same(r#"{"TEXT":"x","number":7,"Switch":false}"#, r#"{"text":"x","Number":7,"switch":false}"#);
        assert_same(r#"{"text":"x","TEXT":"y"}"#, r#"{"text":"y"}"#);
        assert_same(r#"{"text":"x","text":null}"#, r#"{"text":"x"}"#);
        assert_same(r#"{"switch":true,"switch":null}"#, "{}");
        assert_same(r#"{"inner":{"a":1},"inner":{"A":2}}"#, r#"{"inner":{"A":2,"a":1}}"#);
        assert_same(r#"{"map":{"x":{"a":1},"y":{}},"MAP":{"x":{"A":2},"X":{}}}"#, r#"{"map":{"X":{},"x":{"A":2},"y":{}}}"#);
        assert_same(
            r#"{"entries":{"y":{"a":1},"x":{"a":1},"y":{}},"ENTRIES":{"x":{"A":2},"X":{}}}"#,
            r#"{"entries":{"X":{},"x":{"A":2},"y":{}}}"#,
        );
        assert_same(r#"{"entries":{"x":{}},"entries":null}"#, "{}");
        assert_same(r#"{"list":[{"a":1},null],"list":[{"A":2}]}"#, r#"{"list":[{"A":2}]}"#);
        assert_same(r#"{"list":[null],"map":{"x":null}}"#, r#"{"list":[{}],"map":{"x":{}}}"#);
        assert_same(r#"{"text":"\u003c\u00e9"}"#, r#"{"text":"<é"}"#);
        // Go folds two letters outside ASCII
        assert_same(r#"{"liſt":[{"a":1}],"entrieſ":{"x":{}}}"#, r#"{"list":[{"a":1}],"entries":{"x":{}}}"#);
        assert_same(r#"{"LIſT":[{"a":1}],"líst":3}"#, r#"{"list":[{"a":1}]}"#);
        for (name, key, expected) in
            [("backends", "bac\u{212a}ends", true), ("backends", "BAC\u{212a}ENDſ", true), ("a", "á", false), ("a", "aſ", false)]
        {
            assert_eq!(matches_name(name, key), expected, "{key}");
        }
        // a surrogate without its other half, in a value or a key, known or unknown
        assert_same(r#"{"text":"a\ud800b\udc00\ud800"}"#, "{\"text\":\"a\u{fffd}b\u{fffd}\u{fffd}\"}");
        assert_same(r#"{"text":"\uD800\uD83D\uDE00\\ud800"}"#, "{\"text\":\"\u{fffd}\u{1f600}\\\\ud800\"}");
        assert_same(r#"{"other":"\udfff","map":{"\ud800\u0041":{}}}"#, "{\"map\":{\"\u{fffd}A\":{}}}");
    }

    #[test]
    fn errors_name_the_path_of_a_wrong_type() {
        for (json, reason) in [
            (r#"{"inner":{"a":"1"}}"#, r#"inner: a: invalid type: string "1", expected u32"#),
            (r#"{"number":256}"#, "Number: invalid value: integer `256`, expected u8"),
            (r#"{"number":1.0}"#, "Number: invalid type: floating point `1.0`, expected u8"),
            (r#"{"list":{}}"#, "list: invalid type: map, expected an array"),
            (r#"{"map":3}"#, "map: invalid type: integer `3`, expected an object"),
            ("[]", "invalid type: sequence, expected an object"),
            ("", "EOF while parsing a value"),
            ("{} x", "trailing characters"),
        ] {
            let error = outer(json);
            let (error, _) = error.split_once(" at line ").expect("must give a position");
            assert_eq!(error, format!("value is not the JSON of a test: {reason}"));
        }
    }

    #[test]
    fn depth_is_bounded_and_invalid_utf8_is_replaced() {
        let deep = format!("{{\"other\":{}", "[".repeat(1_000_000));
        assert!(outer(&deep).starts_with("value is not the JSON"));
        let value = parse::<OuterJson>("a test", b"{\"text\":\"a\xffb\"}").expect("must parse");
        assert_eq!(value.text, "a\u{fffd}b");
    }
}
