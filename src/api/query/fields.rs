//! `fields=a,b.c`: selection of members of a list's items.
//!
//! The known members come from the list's schema in the OpenAPI document, so that the two cannot
//! differ. Items are filtered after serialization: members that are not selected are skipped in the
//! text, not parsed into values.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::words::join_names;
use crate::api::openapi;
use crate::api::problem::Problem;
use crate::model::suggest_word;

/// Member with the reason why an item has no content.
const TOO_LARGE: &str = "tooLarge";

/// Members that an item can have.
#[derive(Debug, PartialEq, Eq)]
enum MemberSchema {
    /// A text, a number, or a list of them.
    Plain,
    /// Members with arbitrary names, such as labels.
    Open,
    /// Members with these names.
    Members(BTreeMap<String, MemberSchema>),
}

/// Selected members of an item.
#[derive(Debug, Default, PartialEq, Eq)]
struct FieldSelection {
    /// Set if the whole value is selected.
    is_whole: bool,
    members: BTreeMap<String, FieldSelection>,
}

/// Members that a request selects. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fields(Arc<FieldSelection>);

impl MemberSchema {
    /// Converts a schema of the OpenAPI document.
    fn from_schema(schema: &Value, document: &Value) -> Self {
        if let Some(path) = schema["$ref"].as_str() {
            return Self::from_schema(document.pointer(path.trim_start_matches('#')).unwrap_or(&Value::Null), document);
        }
        if schema["items"].is_object() {
            return Self::from_schema(&schema["items"], document);
        }
        match schema["properties"].as_object() {
            Some(members) => {
                Self::Members(members.iter().map(|(name, schema)| (name.clone(), Self::from_schema(schema, document))).collect())
            }
            None if schema["additionalProperties"].is_object() => Self::Open,
            None => Self::Plain,
        }
    }

    /// Returns the schema of the items of the list that a route serves; `None` if it serves none.
    fn for_items_of(route: &str) -> Option<&'static Self> {
        static SHAPES: OnceLock<HashMap<String, MemberSchema>> = OnceLock::new();
        let shapes = SHAPES.get_or_init(|| {
            let document: Value = serde_json::from_str(openapi::document()).unwrap_or_default();
            let lists = document["paths"].as_object().into_iter().flatten().filter_map(|(path, item)| {
                let list = Self::from_schema(&item["get"]["responses"]["200"]["content"]["application/json"]["schema"], &document);
                let Self::Members(mut members) = list else { return None };
                Some((path.clone(), members.remove("items")?))
            });
            lists.collect()
        });
        shapes.get(route)
    }
}

impl FieldSelection {
    /// Selects a member by its path: names that are separated by dots.
    fn add_path(&mut self, path: &str, shape: &MemberSchema) -> Result<(), Problem> {
        let (name, rest, below) = match shape {
            // the rest of the path is one key, which may contain dots
            MemberSchema::Open => (path, None, &MemberSchema::Plain),
            MemberSchema::Plain => {
                return Err(Problem::bad_parameter("fields", format!("the field has no member {path:?}")));
            }
            MemberSchema::Members(members) => {
                let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
                let below = members.get(name).ok_or_else(|| unknown_field(name, members))?;
                (name, rest, below)
            }
        };
        let member = self.members.entry(name.to_owned()).or_default();
        match rest {
            Some(rest) => member.add_path(rest, below),
            None => {
                member.is_whole = true;
                Ok(())
            }
        }
    }
}

fn unknown_field(name: &str, members: &BTreeMap<String, MemberSchema>) -> Problem {
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    let available = join_names(&names);
    let reason = match suggest_word(name, names.iter().copied()) {
        Some(suggestion) => format!("these items have no field {name:?}, did you mean {suggestion}? They have {available}"),
        None => format!("these items have no field {name:?}: they have {available}"),
    };
    Problem::bad_parameter("fields", reason)
}

impl Fields {
    /// Parses the `fields` of a request to this path.
    ///
    /// # Errors
    /// Refuses members that the items do not have.
    pub(crate) fn parse(route: &str, text: &str) -> Result<Self, Problem> {
        let shape = MemberSchema::for_items_of(route).ok_or_else(|| Problem::internal(format!("{route} has no list in the document")))?;
        let mut selection = FieldSelection::default();
        text.split(',').try_for_each(|path| selection.add_path(path.trim(), shape))?;
        // an item whose content was left out must not look like an empty item
        if matches!(shape, MemberSchema::Members(members) if members.contains_key(TOO_LARGE)) {
            selection.add_path(TOO_LARGE, shape)?;
        }
        Ok(Self(Arc::new(selection)))
    }

    /// Appends the selected members of an item to `output`. The item is JSON without whitespace
    /// between tokens.
    pub(crate) fn select(&self, item: &[u8], output: &mut Vec<u8>) {
        ItemFilter { item, index: 0 }.copy_value(&self.0, output);
    }
}

/// Read position in an item.
struct ItemFilter<'a> {
    item: &'a [u8],
    index: usize,
}

impl ItemFilter<'_> {
    fn current_byte(&self) -> u8 {
        self.item.get(self.index).copied().unwrap_or_default()
    }

    /// Appends the selected parts of the value at the current position.
    fn copy_value(&mut self, selection: &FieldSelection, output: &mut Vec<u8>) {
        let before = self.index;
        match self.current_byte() {
            b'{' if !selection.is_whole => self.copy_members(selection, output),
            b'[' if !selection.is_whole => self.copy_elements(selection, output),
            _ => {
                self.skip();
                output.extend_from_slice(&self.item[before..self.index]);
            }
        }
    }

    fn copy_members(&mut self, selection: &FieldSelection, output: &mut Vec<u8>) {
        output.push(b'{');
        let mut is_first = true;
        self.index += 1;
        while self.current_byte() == b'"' {
            let before = self.index;
            self.skip();
            let name = &self.item[before..self.index];
            // the colon
            self.index += 1;
            let text = std::str::from_utf8(&name[1..name.len() - 1]).unwrap_or_default();
            if let Some(selection) = selection.members.get(text) {
                if !std::mem::take(&mut is_first) {
                    output.push(b',');
                }
                output.extend_from_slice(name);
                output.push(b':');
                self.copy_value(selection, output);
            } else {
                self.skip();
            }
            self.index += usize::from(self.current_byte() == b',');
        }
        self.index += 1;
        output.push(b'}');
    }

    fn copy_elements(&mut self, selection: &FieldSelection, output: &mut Vec<u8>) {
        output.push(b'[');
        self.index += 1;
        while self.index < self.item.len() && self.current_byte() != b']' {
            self.copy_value(selection, output);
            if self.current_byte() == b',' {
                output.push(b',');
                self.index += 1;
            }
        }
        self.index += 1;
        output.push(b']');
    }

    /// Skips the value or name at the current position.
    fn skip(&mut self) {
        let mut depth = 0_usize;
        while self.index < self.item.len() {
            match self.current_byte() {
                b'"' => self.skip_text(),
                b'{' | b'[' => {
                    depth += 1;
                    self.index += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.index += 1;
                }
                b',' | b'}' | b']' | b':' if depth == 0 => return,
                _ => {
                    self.index += 1;
                    continue;
                }
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn skip_text(&mut self) {
        self.index += 1;
        while self.index < self.item.len() && self.current_byte() != b'"' {
            // an escaped quote does not end the text
            self.index += if self.current_byte() == b'\\' { 2 } else { 1 };
        }
        self.index += 1;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn select_paths(paths: &[&str], shape: &MemberSchema) -> Fields {
        let mut selection = FieldSelection::default();
        paths.iter().for_each(|path| selection.add_path(path, shape).unwrap());
        Fields(Arc::new(selection))
    }

    #[test]
    fn an_item_has_only_its_selected_members_in_order() {
        let members = |names: &[&str]| MemberSchema::Members(names.iter().map(|name| ((*name).to_owned(), MemberSchema::Plain)).collect());
        let MemberSchema::Members(mut shape) = members(&["name", "id", "live"]) else { unreachable!() };
        shape.insert("labels".to_owned(), MemberSchema::Open);
        shape.insert("ports".to_owned(), members(&["port", "name"]));
        let shape = MemberSchema::Members(shape);
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
            select_paths(paths, &shape).select(&item, &mut bytes);
            assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), expected, "{paths:?}: {}", String::from_utf8_lossy(&bytes));
        }
    }
}
