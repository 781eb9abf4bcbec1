//! `fields=a,b.c`: selection of members of a list's items.
//!
//! The known members come from the list's schema in the OpenAPI document, so that the two cannot
//! differ. Items are filtered after serialization: members that are not selected are skipped in the
//! text, not parsed into values.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::words::and;
use crate::api::openapi;
use crate::api::problem::Problem;
use crate::model::suggest_word;

/// Member that says why an item has no content.
const TOO_LARGE: &str = "tooLarge";

/// Members that an item can have.
#[derive(Debug, PartialEq, Eq)]
enum Shape {
    /// A text, a number, or a list of them.
    Plain,
    /// Members with arbitrary names, such as labels.
    Open,
    /// Members with these names.
    Members(BTreeMap<String, Shape>),
}

/// Selected members of an item.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Set if the whole value is selected.
    whole: bool,
    members: BTreeMap<String, Wanted>,
}

/// Members that a request selects. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fields(Arc<Wanted>);

impl Shape {
    /// Returns the shape of a schema in the document.
    fn of(schema: &Value, document: &Value) -> Self {
        if let Some(path) = schema["$ref"].as_str() {
            return Self::of(document.pointer(path.trim_start_matches('#')).unwrap_or(&Value::Null), document);
        }
        if schema["items"].is_object() {
            return Self::of(&schema["items"], document);
        }
        match schema["properties"].as_object() {
            Some(members) => Self::Members(members.iter().map(|(name, schema)| (name.clone(), Self::of(schema, document))).collect()),
            None if schema["additionalProperties"].is_object() => Self::Open,
            None => Self::Plain,
        }
    }

    /// Returns the shape of the items of a path's list; `None` if the path has no list.
    fn of_items(path: &str) -> Option<&'static Self> {
        static SHAPES: OnceLock<HashMap<String, Shape>> = OnceLock::new();
        let shapes = SHAPES.get_or_init(|| {
            let document: Value = serde_json::from_str(openapi::document()).unwrap_or_default();
            let lists = document["paths"].as_object().into_iter().flatten().filter_map(|(path, item)| {
                let list = Self::of(&item["get"]["responses"]["200"]["content"]["application/json"]["schema"], &document);
                let Self::Members(mut members) = list else { return None };
                Some((path.clone(), members.remove("items")?))
            });
            lists.collect()
        });
        let is_of_identity = path.starts_with("/v1/identities/");
        shapes.get(if is_of_identity { "/v1/identities/{id}/ips" } else { path })
    }
}

impl Wanted {
    /// Selects a member by its path of names.
    fn add(&mut self, path: &str, shape: &Shape) -> Result<(), Problem> {
        let (name, rest, below) = match shape {
            // the rest is one key: it may contain dots
            Shape::Open => (path, None, &Shape::Plain),
            Shape::Plain => return Err(Problem::parameter("fields", format!("the field has no member {path:?}"))),
            Shape::Members(members) => {
                let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
                let below = members.get(name).ok_or_else(|| unknown(name, members))?;
                (name, rest, below)
            }
        };
        let member = self.members.entry(name.to_owned()).or_default();
        match rest {
            Some(rest) => member.add(rest, below),
            None => {
                member.whole = true;
                Ok(())
            }
        }
    }
}

fn unknown(name: &str, members: &BTreeMap<String, Shape>) -> Problem {
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    let there_are = and(&names);
    let trouble = match suggest_word(name, names.iter().copied()) {
        Some(meant) => format!("these items have no field {name:?}, did you mean {meant}? They have {there_are}"),
        None => format!("these items have no field {name:?}: they have {there_are}"),
    };
    Problem::parameter("fields", trouble)
}

impl Fields {
    /// Parses the `fields` of a request to this path.
    ///
    /// # Errors
    /// Refuses members that the items do not have.
    pub(crate) fn read(path: &str, text: &str) -> Result<Self, Problem> {
        let shape = Shape::of_items(path).ok_or_else(|| Problem::internal(format!("{path} has no list in the document")))?;
        let mut wanted = Wanted::default();
        text.split(',').try_for_each(|path| wanted.add(path.trim(), shape))?;
        // an item without its content must not look like an empty one
        if matches!(shape, Shape::Members(members) if members.contains_key(TOO_LARGE)) {
            wanted.add(TOO_LARGE, shape)?;
        }
        Ok(Self(Arc::new(wanted)))
    }

    /// Appends the selected members of an item to `into`. The item is JSON without whitespace
    /// between tokens.
    pub(crate) fn cut(&self, item: &[u8], into: &mut Vec<u8>) {
        Cut { item, at: 0 }.value(&self.0, into);
    }
}

/// Read position in an item.
struct Cut<'a> {
    item: &'a [u8],
    at: usize,
}

impl Cut<'_> {
    fn now(&self) -> u8 {
        self.item.get(self.at).copied().unwrap_or_default()
    }

    /// Appends the value at the current position, as far as it is selected.
    fn value(&mut self, wanted: &Wanted, into: &mut Vec<u8>) {
        let before = self.at;
        match self.now() {
            b'{' if !wanted.whole => self.members(wanted, into),
            b'[' if !wanted.whole => self.elements(wanted, into),
            _ => {
                self.skip();
                into.extend_from_slice(&self.item[before..self.at]);
            }
        }
    }

    fn members(&mut self, wanted: &Wanted, into: &mut Vec<u8>) {
        into.push(b'{');
        let mut is_first = true;
        self.at += 1;
        while self.now() == b'"' {
            let before = self.at;
            self.skip();
            let name = &self.item[before..self.at];
            // the colon
            self.at += 1;
            let text = std::str::from_utf8(&name[1..name.len() - 1]).unwrap_or_default();
            if let Some(wanted) = wanted.members.get(text) {
                if !std::mem::take(&mut is_first) {
                    into.push(b',');
                }
                into.extend_from_slice(name);
                into.push(b':');
                self.value(wanted, into);
            } else {
                self.skip();
            }
            self.at += usize::from(self.now() == b',');
        }
        self.at += 1;
        into.push(b'}');
    }

    fn elements(&mut self, wanted: &Wanted, into: &mut Vec<u8>) {
        into.push(b'[');
        self.at += 1;
        while self.at < self.item.len() && self.now() != b']' {
            self.value(wanted, into);
            if self.now() == b',' {
                into.push(b',');
                self.at += 1;
            }
        }
        self.at += 1;
        into.push(b']');
    }

    /// Skips the value or name at the current position.
    fn skip(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.item.len() {
            match self.now() {
                b'"' => self.skip_text(),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b'}' | b']' | b':' if depth == 0 => return,
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn skip_text(&mut self) {
        self.at += 1;
        while self.at < self.item.len() && self.now() != b'"' {
            // an escaped quote does not end the text
            self.at += if self.now() == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(paths: &[&str], shape: &Shape) -> Fields {
        let mut wanted = Wanted::default();
        paths.iter().for_each(|path| wanted.add(path, shape).unwrap());
        Fields(Arc::new(wanted))
    }

    #[test]
    fn an_item_is_cut_to_what_is_wanted_in_its_own_order() {
        let members = |names: &[&str]| Shape::Members(names.iter().map(|name| ((*name).to_owned(), Shape::Plain)).collect());
        let Shape::Members(mut shape) = members(&["name", "id", "live"]) else { unreachable!() };
        shape.insert("labels".to_owned(), Shape::Open);
        shape.insert("ports".to_owned(), members(&["port", "name"]));
        let shape = Shape::Members(shape);
        let item = json!({
            "name": "a\"},{[\\", "id": 7, "labels": { "app.io/x": "1,2", "b": "" }, "live": null,
            "ports": [{ "name": "http", "port": 80 }, { "port": 443 }, {}], "empty": [], "none": {},
        });
        let item = serde_json::to_vec(&item).unwrap();
        for (paths, expected) in [
            (&["name"][..], json!({ "name": "a\"},{[\\" })),
            (&["ports.port", "id"], json!({ "id": 7, "ports": [{ "port": 80 }, { "port": 443 }, {}] })),
            (&["ports.port", "ports"], json!({ "ports": [{ "name": "http", "port": 80 }, { "port": 443 }, {}] })),
            (&["labels.app.io/x"], json!({ "labels": { "app.io/x": "1,2" } })),
            (&["labels.none", "live"], json!({ "labels": {}, "live": null })),
            (&["labels"], json!({ "labels": { "app.io/x": "1,2", "b": "" } })),
        ] {
            let mut bytes = Vec::new();
            wanted(paths, &shape).cut(&item, &mut bytes);
            assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), expected, "{paths:?}: {}", String::from_utf8_lossy(&bytes));
        }
    }
}
