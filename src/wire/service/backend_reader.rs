//! A fast reader for the backends of a service.
//!
//! Nearly all backends of a service have the same ports, and Go writes equal ports as equal bytes.
//! Comparing 120 bytes takes a hundredth of the time of parsing them, so ports whose JSON text was
//! seen before, at an earlier address, are not parsed again. Anything that Go would not write (an
//! escape in a key, a repeated address) and any error is left to the general JSON reader, whose
//! errors name the field.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{AddressPorts, RecentPortLists, ServiceJson, to_ports};
use crate::wire::address::parse_ip;
use crate::wire::go_json::{matches_name, parse};

const BACKENDS: &str = "backends";

/// Blanks of JSON (RFC 8259 §2).
const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

/// Reads a service: its backends, and the other members separately. `None` if the general reader
/// has to do it.
pub(super) fn read(value: &[u8]) -> Option<(ServiceJson, Vec<AddressPorts<'_>>)> {
    let text = str::from_utf8(value).ok()?;
    let mut result = None;
    JsonCursor(text).members(|key, cursor| {
        if !matches_name(BACKENDS, key) {
            return cursor.value().map(drop);
        }
        if result.is_some() {
            // the general reader merges two objects, or empties the first at `null`
            return None;
        }
        let before = &text[..text.len() - cursor.0.len()];
        let backends = read_backends(cursor)?;
        result = Some((backends, [before, "null", cursor.0].concat()));
        Some(())
    })?;
    let (backends, rest) = result?;
    Some((parse("a service", rest.as_bytes()).ok()?, backends))
}

fn read_backends<'a>(cursor: &mut JsonCursor<'a>) -> Option<Vec<AddressPorts<'a>>> {
    let (mut backends, mut lists) = (Vec::new(), RecentPortLists::default());
    cursor.members(|text, cursor| {
        let ip = parse_ip(text).ok()?;
        let ports = match lists.match_known(cursor.0) {
            Some((ports, rest)) => {
                cursor.0 = rest;
                ports
            }
            None => {
                let text = cursor.value()?;
                lists.share(text, to_ports(parse("ports", text.as_bytes()).ok()?))
            }
        };
        backends.push(AddressPorts { text: Cow::Borrowed(text), ip, ports });
        Some(())
    })?;
    backends.sort_by_key(|backend| backend.ip);
    // for a repeated address the general reader keeps the last ports (same spelling) or merges them
    // (other spelling)
    backends.is_sorted_by(|one, next| one.ip < next.ip).then_some(backends)
}

/// Rest of a JSON text. A method returns `None` if the text is not as it expects.
struct JsonCursor<'a>(&'a str);

impl<'a> JsonCursor<'a> {
    /// Skips a symbol and the blanks before it.
    fn skip_symbol(&mut self, symbol: char) -> Option<()> {
        let rest = self.0.strip_prefix(symbol).or_else(|| self.0.trim_start_matches(BLANKS).strip_prefix(symbol));
        self.0 = rest?;
        Some(())
    }

    /// Reads a key without escapes.
    fn key(&mut self) -> Option<&'a str> {
        self.skip_symbol('"')?;
        let (key, rest) = self.0.split_once('"')?;
        self.0 = rest;
        self.skip_symbol(':')?;
        (!key.contains('\\')).then_some(key)
    }

    /// Skips a value of any type and returns its text.
    fn value(&mut self) -> Option<&'a str> {
        let mut values = serde_json::Deserializer::from_str(self.0).into_iter::<&RawValue>();
        let text = values.next()?.ok()?.get();
        self.0 = &self.0[values.byte_offset()..];
        Some(text)
    }

    /// Visits the members of an object. `visit` gets a key and must consume the value.
    fn members(&mut self, mut visit: impl FnMut(&'a str, &mut Self) -> Option<()>) -> Option<()> {
        self.skip_symbol('{')?;
        if self.skip_symbol('}').is_some() {
            return Some(());
        }
        loop {
            let key = self.key()?;
            visit(key, self)?;
            if self.skip_symbol(',').is_none() {
                return self.skip_symbol('}');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::model::Service;

    fn read_fast(json: &str) -> Option<Result<Service, String>> {
        let (service, backends) = read(json.as_bytes())?;
        Some(service.into_service(Some(backends)))
    }

    fn read_general(json: &str) -> Result<Service, String> {
        parse("a service", json.as_bytes()).and_then(|service: ServiceJson| service.into_service(None))
    }

    #[test]
    fn equal_ports_are_shared() {
        let json = r#"{"backends":{"10.0.0.1":{"a":{"Port":1}},"10.0.0.2":{"b":{"Port":1}},"10.0.0.3":{"a":{"Port":1}}}}"#;
        for service in [read_fast(json).unwrap().unwrap(), read_general(json).unwrap()] {
            let [one, two, three] = service.backends.as_slice() else { panic!("{service:?}") };
            assert!(std::ptr::eq(&*one.ports, &*three.ports) && one.ports != two.ports, "{service:?}");
        }
    }

    #[test]
    fn unusual_json_is_left_to_the_general_reader() {
        for json in [
            "",
            "{}",
            "null",
            r#"{"backends":null}"#,
            r#"{"backends":{}"#,
            r#"{"backends":{}},"#,
            r#"{"backends":{},}"#,
            r#"{"backends":{},"BACKENDS":{}}"#,
            r#"{"backends":{},"backend\u0073":null}"#,
            r#"{"backends":{"10.0.0.1":{},}}"#,
            r#"{"backends":{"10.0.0.1":{}},"shared":1}"#,
            r#"{"backends":{"10.0.0.1":{}"10.0.0.2":{}}}"#,
            r#"{"backends":{"10.0.0.1":{}{}}}"#,
            r#"{"backends":{"10.0.0.1" {}}}"#,
            r#"{"backends":{"10.0.0.1":{},"10.0.0.1":{}}}"#,
            r#"{"backends":{"10.0.0.1":{},"10.0.0.2":{},"::ffff:10.0.0.1":{}}}"#,
            r#"{"backends":{"10.0.0.\u0031":{}}}"#,
            r#"{"backends":{"10.0.0":{}}}"#,
            r#"{"backends":{"10.0.0.1":{"a":{"Port":-1}}}}"#,
            r#"{"backends":{"10.0.0.1":nul}}"#,
            r#"{"backends":{"10.0.0.1":null,"10.0.0.2":nulll}}"#,
        ] {
            assert!(read_fast(json).is_none(), "{json}");
        }
        for json in [
            r#"{"backends":{"10.0.0.2":{"a":{"Port":1}},"10.0.0.1":{}}}"#,
            r#"{"Backends":{}}"#,
            " {\n\"backends\" :\t{ } }\r",
            r#"{"backends":{"10.0.0.1":null,"10.0.0.2":null}}"#,
        ] {
            assert_eq!(read_fast(json), Some(read_general(json)), "{json}");
            assert!(read_general(json).is_ok(), "{json}");
        }
    }

    /// Fragments of JSON that make up valid and invalid services.
    const PIECES: [&str; 31] = [
        r#""10.0.0.1""#,
        r#""10.0.0.10""#,
        r#""10.0.0.2""#,
        r#""::ffff:10.0.0.1""#,
        r#""fd00::1""#,
        r#""x""#,
        r#""10.0.0.\u0032""#,
        ":",
        ",",
        "{",
        "}",
        " ",
        "null",
        "7",
        r#"{"a":{"Protocol":"TCP","Port":1}}"#,
        r#"{"a":{"Protocol":"TCP","Port":1},"b":null}"#,
        r#"{"a":{"protocol":"TCP","Port":2}}"#,
        r#"{"a":{"Port":1},"a":{"Port":3}}"#,
        r#"{"Port":65536}"#,
        "{}",
        r#""backends":{"#,
        r#""Backends":{"#,
        r#""backends":null"#,
        r#""backend\u0073":{"#,
        r#","10.0.0.3":{"a":{"Protocol":"TCP","Port":1}}"#,
        r#","10.0.0.4":{"a":{"Protocol":"TCP","Port":1}}"#,
        r#","10.0.0.5":{"b":{"Protocol":"TCP","Port":1}}"#,
        r#""hostnames":{"10.0.0.1":"h","::ffff:10.0.0.1":"i","10.0.0.3":"j"}"#,
        r#""zones":{"10.0.0.1":{"zone":"z"},"10.0.0.4":{"forZones":[{"name":"y"}]}}"#,
        r#""frontends":{"10.9.0.1":{"a":{"Port":1}}}"#,
        r#""shared":true"#,
    ];

    #[test]
    fn both_readers_agree_on_any_json() {
        let mut random = StdRng::seed_from_u64(5);
        let whole = [
            "{", PIECES[20], PIECES[0], ":", PIECES[14], ",", PIECES[1], ":", PIECES[14], ",", PIECES[2], ":", PIECES[15], PIECES[24],
            PIECES[26], ",", PIECES[4], ":", PIECES[14], "}", ",", PIECES[27], ",", PIECES[28], ",", PIECES[29], ",", PIECES[30], "}",
        ];
        let (mut fast_count, mut valid_count) = (0, 0);
        for _ in 0..5_000 {
            let mut pieces = whole.to_vec();
            for _ in 0..random.random_range(0..4) {
                let index = random.random_range(0..pieces.len());
                match random.random_range(0..3) {
                    0 => drop(pieces.remove(index)),
                    1 => pieces.insert(index, PIECES.choose(&mut random).unwrap()),
                    _ => pieces[index] = PIECES.choose(&mut random).unwrap(),
                }
            }
            let json = pieces.concat();
            let full = read_general(&json);
            valid_count += usize::from(full.is_ok());
            if let Some(service) = read_fast(&json) {
                fast_count += 1;
                assert_eq!(service, full, "{json}");
            }
        }
        assert!(fast_count > 1_000 && valid_count > fast_count, "{fast_count} of {valid_count} that are usable");
    }
}
