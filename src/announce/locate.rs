//! Line numbers of elements of a YAML document. serde does not expose positions of values, so
//! [`Way::line`] parses the text again and provokes an error at the wanted element: the parser's
//! errors have line numbers.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A member of a mapping.
    Member(&'static str),
    /// An element of a list.
    Element(usize),
}

/// The path from the top of a document to one of its elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Way(Vec<Step>);

impl Way {
    /// Returns the path to an element of one of the top-level lists.
    pub(super) fn to(list: &'static str, index: usize) -> Self {
        Self(vec![Step::Member(list), Step::Element(index)])
    }

    /// Returns the path to a top-level member.
    pub(super) fn member(name: &'static str) -> Self {
        Self(vec![Step::Member(name)])
    }

    /// Returns the path to a member of the element that this path leads to.
    pub(super) fn with(&self, member: &'static str) -> Self {
        Self(self.0.iter().copied().chain([Step::Member(member)]).collect())
    }

    /// Returns the path to an element of the list that this path leads to.
    pub(super) fn at(&self, index: usize) -> Self {
        Self(self.0.iter().copied().chain([Step::Element(index)]).collect())
    }

    /// Returns the line that the path leads to, counted from 1. If the path does not exist, returns
    /// the line of its longest part that does.
    pub(super) fn line(&self, text: &str) -> usize {
        let found = |steps: &[Step]| {
            let error = Descent(steps).deserialize(serde_yaml_ng::Deserializer::from_str(text)).err()?;
            error.location().map(|location| location.line())
        };
        (0..=self.0.len()).rev().find_map(|length| found(&self.0[..length])).unwrap_or(1)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.0.iter().enumerate() {
            match step {
                Step::Member(name) if place == 0 => f.write_str(name)?,
                Step::Member(name) => write!(f, ".{name}")?,
                Step::Element(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A deserializer that walks down the steps and fails at their end. It succeeds if the steps lead
/// nowhere.
struct Descent<'a>(&'a [Step]);

impl<'de> DeserializeSeed<'de> for Descent<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Fails if all steps were walked.
fn here<E: Error>(steps: &[Step]) -> Result<(), E> {
    if steps.is_empty() { Err(E::custom("here")) } else { Ok(()) }
}

impl<'de> Visitor<'de> for Descent<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        here(self.0)?;
        while let Some(name) = map.next_key::<String>()? {
            match self.0.split_first() {
                Some((Step::Member(member), rest)) if *member == name => map.next_value_seed(Descent(rest))?,
                _ => map.next_value::<IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        here(self.0)?;
        let mut index = 0;
        loop {
            let found = match self.0.split_first() {
                Some((Step::Element(element), rest)) if *element == index => list.next_element_seed(Descent(rest))?.is_some(),
                _ => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !found {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        here(self.0)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        here(self.0)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        here(self.0)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        here(self.0)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        here(self.0)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        here(self.0)
    }
}
