//! A YAML reader with the semantics of Cilium's agents: go-yaml 2 behind `sigs.k8s.io/yaml`, which
//! converts the values to JSON.
//!
//! It differs from `serde_yaml_ng`: only the first document counts, the last of equal keys wins,
//! `yes` and `on` are booleans, tags of lists and mappings are ignored, and `<<` merges the keys of
//! another mapping.

use std::collections::HashMap;
use std::rc::Rc;

use libyaml_safer::{Event, EventData};
use serde_yaml_ng::{Mapping, Value};

use super::bounds::{Events, Limits, YamlError};
use super::resolve::resolve;

/// Tag that makes `<<` a merge key even if it is quoted.
const MERGE_TAG: &str = "tag:yaml.org,2002:merge";

/// Reads the first document of a text; `null` if there is none. Keys of mappings are strings, and
/// no value has a tag.
///
/// # Errors
/// Returns a [`YamlError`] if the text exceeds the limits, is not YAML, or is rejected by agents.
pub(crate) fn read(bytes: &[u8], limits: &Limits) -> Result<Value, YamlError> {
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(&bytes[..error.valid_up_to()]))?;
    let mut composer = Composer { events: Events::new(text, *limits)?, anchors: HashMap::new() };
    loop {
        let event = composer.events.next()?;
        match event.data {
            EventData::DocumentStart { version_directive, .. } => {
                if version_directive.is_some_and(|version| (version.major, version.minor) != (1, 1)) {
                    return Err(YamlError::Refused { line: event.start_mark.line + 1, reason: "agents only read YAML 1.1" });
                }
                let root = composer.next_node()?;
                // the event that ends the document must be valid too
                composer.events.next()?;
                return value_of(&root);
            }
            EventData::StreamEnd => return Ok(Value::Null),
            _ => {}
        }
    }
}

fn not_utf8(valid: &[u8]) -> YamlError {
    let line = valid.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    YamlError::Refused { line, reason: "not UTF-8" }
}

/// A node at its own position, or at that of an alias.
struct PositionedNode {
    node: Rc<YamlNode>,
    is_alias: bool,
    /// Line, from 1.
    line: u64,
}

enum YamlNode {
    Scalar { value: Value, is_merge: bool },
    Sequence(Vec<PositionedNode>),
    Mapping(Vec<(PositionedNode, PositionedNode)>),
}

/// Builder of nodes from events. Aliases share nodes.
struct Composer<'a> {
    events: Events<'a>,
    anchors: HashMap<String, Rc<YamlNode>>,
}

impl Composer<'_> {
    fn next_node(&mut self) -> Result<PositionedNode, YamlError> {
        let event = self.events.next()?;
        self.node(event)
    }

    /// Builds the node that begins with an event. The nesting limit bounds the recursion.
    fn node(&mut self, event: Event) -> Result<PositionedNode, YamlError> {
        let line = event.start_mark.line + 1;
        let (anchor, node) = match event.data {
            EventData::Alias { anchor } => {
                let node = self.anchors.get(&anchor).cloned().ok_or(YamlError::Refused { line, reason: "an alias without an anchor" })?;
                return Ok(PositionedNode { node, is_alias: true, line });
            }
            EventData::Scalar { anchor, tag, value, plain_implicit, .. } => {
                let is_merge = value == "<<" && (plain_implicit || tag.as_deref() == Some(MERGE_TAG));
                let value = if tag.is_none() && !plain_implicit { Some(Value::String(value)) } else { resolve(tag.as_deref(), value) };
                let value = value.ok_or(YamlError::Refused { line, reason: "a value that does not match its tag" })?;
                (anchor, YamlNode::Scalar { value, is_merge })
            }
            EventData::SequenceStart { anchor, .. } => (anchor, YamlNode::Sequence(self.sequence()?)),
            EventData::MappingStart { anchor, .. } => (anchor, YamlNode::Mapping(self.mapping()?)),
            _ => return Err(YamlError::Refused { line, reason: "a value is missing" }),
        };
        let node = Rc::new(node);
        if let Some(anchor) = anchor {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        Ok(PositionedNode { node, is_alias: false, line })
    }

    fn sequence(&mut self) -> Result<Vec<PositionedNode>, YamlError> {
        let mut items = Vec::new();
        loop {
            let event = self.events.next()?;
            if matches!(event.data, EventData::SequenceEnd) {
                return Ok(items);
            }
            items.push(self.node(event)?);
        }
    }

    fn mapping(&mut self) -> Result<Vec<(PositionedNode, PositionedNode)>, YamlError> {
        let mut pairs = Vec::new();
        loop {
            let event = self.events.next()?;
            if matches!(event.data, EventData::MappingEnd) {
                return Ok(pairs);
            }
            pairs.push((self.node(event)?, self.next_node()?));
        }
    }
}

/// Converts a node to a value and expands its aliases. The limits bound the size of the result.
fn value_of(positioned: &PositionedNode) -> Result<Value, YamlError> {
    match &*positioned.node {
        YamlNode::Scalar { value, .. } if value.as_f64().is_some_and(|number| !number.is_finite()) => {
            Err(YamlError::Refused { line: positioned.line, reason: "a number that JSON cannot represent" })
        }
        YamlNode::Scalar { value, .. } => Ok(value.clone()),
        YamlNode::Sequence(items) => Ok(Value::Sequence(items.iter().map(value_of).collect::<Result<_, _>>()?)),
        YamlNode::Mapping(pairs) => {
            let mut mapping = Mapping::new();
            insert_pairs(&mut mapping, pairs)?;
            Ok(Value::Mapping(mapping))
        }
    }
}

/// Inserts pairs into a mapping in order. A later pair replaces an earlier one, including those
/// that a merge inserts.
fn insert_pairs(mapping: &mut Mapping, pairs: &[(PositionedNode, PositionedNode)]) -> Result<(), YamlError> {
    for (key, value) in pairs {
        if !key.is_alias && matches!(&*key.node, YamlNode::Scalar { is_merge: true, .. }) {
            merge(mapping, value)?;
        } else {
            mapping.insert(Value::String(key_of(key)?), value_of(value)?);
        }
    }
    Ok(())
}

fn merge(mapping: &mut Mapping, from: &PositionedNode) -> Result<(), YamlError> {
    match &*from.node {
        YamlNode::Mapping(pairs) => insert_pairs(mapping, pairs),
        // the first mapping wins, so it is inserted last
        YamlNode::Sequence(items) if !from.is_alias => items.iter().rev().try_for_each(|item| match &*item.node {
            YamlNode::Mapping(pairs) => insert_pairs(mapping, pairs),
            _ => Err(YamlError::Refused { line: item.line, reason: "<< needs a mapping or a list of mappings" }),
        }),
        _ => Err(YamlError::Refused { line: from.line, reason: "<< needs a mapping or a list of mappings" }),
    }
}

/// Converts a key to a string, as JSON needs it.
fn key_of(positioned: &PositionedNode) -> Result<String, YamlError> {
    match &*positioned.node {
        YamlNode::Scalar { value: Value::String(text), .. } => Ok(text.clone()),
        YamlNode::Scalar { value: Value::Bool(flag), .. } => Ok(flag.to_string()),
        YamlNode::Scalar { value: Value::Number(number), .. } => Ok(number.to_string()),
        _ => Err(YamlError::Refused { line: positioned.line, reason: "a key must be a string" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        super::read(text.as_bytes(), &Limits::CONFIGURATION).map_err(|error| error.to_string())
    }

    /// Parses JSON, which `serde_yaml_ng` reads as YAML 1.2.
    fn json(text: &str) -> Result<Value, String> {
        Ok(serde_yaml_ng::from_str(text).unwrap())
    }

    #[test]
    fn only_the_first_document_is_read() {
        for text in [
            "a: b",
            "\u{feff}a: b",
            "---\na: b\n",
            "a: b\n---\n",
            "a: b\n---\n]: {\n",
            "a: b\n...\n[\n",
            "%YAML 1.1\n---\na: b\n",
            "a:\tb\t\n",
            "a:\r\n  b\r\n",
        ] {
            assert_eq!(read(text), json("{\"a\": \"b\"}"), "{text:?}");
        }
        for text in ["", "---\n---\na: b\n", "# a: b\n"] {
            assert_eq!(read(text), json("null"), "{text:?}");
        }
        assert_eq!(read("%YAML 1.2\n---\na: b\n"), Err("agents only read YAML 1.1 (line 1)".to_owned()));
        assert_eq!(super::read(b"a: b\nc: \xe9\n", &Limits::CONFIGURATION).unwrap_err().to_string(), "not UTF-8 (line 2)");
    }

    #[test]
    fn later_keys_replace_earlier_and_merged_keys() {
        for (text, expected) in [
            ("a: 1\na: 2", "{\"a\": 2}"),
            ("x: &x {a: 1, b: 2}\n<<: *x", "{\"x\": {\"a\": 1, \"b\": 2}, \"a\": 1, \"b\": 2}"),
            ("a: 1\n<<: {a: 2}", "{\"a\": 2}"),
            ("<<: {a: 2}\na: 1", "{\"a\": 1}"),
            ("<<: [{a: 1}, {a: 2, b: 3}]", "{\"a\": 1, \"b\": 3}"),
            ("'<<': {a: 2}", "{\"<<\": {\"a\": 2}}"),
            ("1: a\nyes: b\n.5: c", "{\"1\": \"a\", \"true\": \"b\", \"0.5\": \"c\"}"),
            ("a: &a [b]\nc: &a [d]\ne: *a", "{\"a\": [\"b\"], \"c\": [\"d\"], \"e\": [\"d\"]}"),
            ("a: !!set {b, c}\nd: !x [e]", "{\"a\": {\"b\": null, \"c\": null}, \"d\": [\"e\"]}"),
        ] {
            assert_eq!(read(text), json(expected), "{text}");
        }
        for (text, reason) in [
            ("<<: 1", "<< needs a mapping or a list of mappings (line 1)"),
            ("x: &x [{a: 1}]\n<<: *x", "<< needs a mapping or a list of mappings (line 2)"),
            ("<<:\n- {a: 1}\n- 2", "<< needs a mapping or a list of mappings (line 3)"),
            ("a:\n  ~: 1", "a key must be a string (line 2)"),
            ("[b]: 1", "a key must be a string (line 1)"),
            ("a: .nan", "a number that JSON cannot represent (line 1)"),
            ("a: !!int b", "a value that does not match its tag (line 1)"),
        ] {
            assert_eq!(read(text), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_block_scalar_does_not_include_the_added_line_break() {
        for (text, expected) in
            [("a: |\n  x", "x"), ("a: |\n  x\n", "x\n"), ("a: |+\n  x", "x"), ("a: |-\n  x", "x"), ("\u{feff}a: >\n  x\n  y", "x y")]
        {
            assert_eq!(read(text).unwrap()["a"], Value::String(expected.to_owned()), "{text:?}");
        }
    }
}
