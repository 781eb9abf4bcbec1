//! Line numbers of elements of a YAML document. serde does not expose positions of values, so
//! [`YamlPath::line`] parses the text again and provokes an error at the wanted element: the
//! parser's errors have line numbers.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathSegment {
    /// A member of a mapping.
    Member(&'static str),
    /// An element of a list.
    Element(usize),
}

/// The path from the top of a document to one of its elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct YamlPath(Vec<PathSegment>);

impl YamlPath {
    /// Returns the path to an element of one of the top-level lists.
    pub(super) fn element(list: &'static str, index: usize) -> Self {
        Self(vec![PathSegment::Member(list), PathSegment::Element(index)])
    }

    /// Returns the path to a top-level member.
    pub(super) fn member(name: &'static str) -> Self {
        Self(vec![PathSegment::Member(name)])
    }

    /// Returns the path to a member of the element that this path leads to.
    pub(super) fn join(&self, member: &'static str) -> Self {
        Self(self.0.iter().copied().chain([PathSegment::Member(member)]).collect())
    }

    /// Returns the path to an element of the list that this path leads to.
    pub(super) fn index(&self, index: usize) -> Self {
        Self(self.0.iter().copied().chain([PathSegment::Element(index)]).collect())
    }

    /// Returns the line that the path leads to, counted from 1. If the path does not exist, returns
    /// the line of its longest part that does.
    pub(super) fn line(&self, text: &str) -> usize {
        let line_at = |segments: &[PathSegment]| {
            let error = PathFinder(segments).deserialize(serde_yaml_ng::Deserializer::from_str(text)).err()?;
            error.location().map(|location| location.line())
        };
        (0..=self.0.len()).rev().find_map(|length| line_at(&self.0[..length])).unwrap_or(1)
    }
}

impl fmt::Display for YamlPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.0.iter().enumerate() {
            match segment {
                PathSegment::Member(name) if index == 0 => f.write_str(name)?,
                PathSegment::Member(name) => write!(f, ".{name}")?,
                PathSegment::Element(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Deserializer that follows a path and fails at its end. It succeeds if the document has no such
/// path.
struct PathFinder<'a>(&'a [PathSegment]);

impl<'de> DeserializeSeed<'de> for PathFinder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Returns an error at the end of the path.
fn fail_at_end<E: Error>(segments: &[PathSegment]) -> Result<(), E> {
    if segments.is_empty() { Err(E::custom("here")) } else { Ok(()) }
}

impl<'de> Visitor<'de> for PathFinder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        fail_at_end(self.0)?;
        while let Some(name) = map.next_key::<String>()? {
            match self.0.split_first() {
                Some((PathSegment::Member(member), rest)) if *member == name => map.next_value_seed(PathFinder(rest))?,
                _ => map.next_value::<IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        fail_at_end(self.0)?;
        let mut index = 0;
        loop {
            let has_element = match self.0.split_first() {
                Some((PathSegment::Element(element), rest)) if *element == index => list.next_element_seed(PathFinder(rest))?.is_some(),
                _ => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !has_element {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        fail_at_end(self.0)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        fail_at_end(self.0)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        fail_at_end(self.0)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        fail_at_end(self.0)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        fail_at_end(self.0)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        fail_at_end(self.0)
    }
}
