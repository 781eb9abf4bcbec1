//! Labels of an identity, stored in one allocation. Every lookup of an address returns the labels
//! of its identity, so cloning them must be cheap.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::model::LabelSet;

/// Labels by `source:key`, sorted by it. Clones share the text.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct IdentityLabels(Arc<LabelText>);

#[derive(PartialEq, Eq, Default)]
struct LabelText {
    /// All keys and values, concatenated.
    text: Box<str>,
    /// End offsets of each key and of its value.
    ends: Box<[(u32, u32)]>,
}

/// Initial capacity, in bytes: enough for the labels of a pod, which has `app` and the labels that
/// Cilium adds.
const USUAL_LENGTH: usize = 512;
const USUAL_COUNT: usize = 8;

impl IdentityLabels {
    /// Creates labels from source, key and value. If a label occurs twice, its last value counts.
    /// Cilium writes labels sorted.
    pub fn new<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> Self {
        let labels = Self::join(labels.into_iter().map(|(source, key, value)| ([source, ":", key], value)));
        if labels.iter().is_sorted_by(|(one, _), (next, _)| one < next) {
            return labels;
        }
        let sorted: BTreeMap<&str, &str> = labels.iter().collect();
        Self::join(sorted.into_iter().map(|(key, value)| ([key], value)))
    }

    /// Joins sorted labels, each with the parts of its `source:key`.
    fn join<'a, const PARTS: usize>(labels: impl Iterator<Item = ([&'a str; PARTS], &'a str)>) -> Self {
        let (mut text, mut ends) = (String::with_capacity(USUAL_LENGTH), Vec::with_capacity(USUAL_COUNT));
        for (key, value) in labels {
            text.extend(key);
            let key_end = text_end(&text);
            text.push_str(value);
            ends.push((key_end, text_end(&text)));
        }
        Self(Arc::new(LabelText { text: text.into(), ends: ends.into() }))
    }

    /// Iterates over each `source:key` with its value, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.0.ends.iter().map(move |(key_end, value_end)| {
            let (key_end, value_end) = (*key_end as usize, *value_end as usize);
            let label = (&self.0.text[start..key_end], &self.0.text[key_end..value_end]);
            start = value_end;
            label
        })
    }

    /// Returns the value of a `source:key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// Returns whether there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// Returns the number of bytes of memory in use.
    #[must_use]
    pub fn footprint(&self) -> usize {
        size_of::<LabelText>() + self.0.text.len() + size_of_val(&*self.0.ends)
    }
}

/// Returns the length of a text. No value in etcd reaches 4 GiB.
fn text_end(text: &str) -> u32 {
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

impl From<LabelSet> for IdentityLabels {
    fn from(labels: LabelSet) -> Self {
        Self::join(labels.iter().map(|(key, value)| ([key.as_str()], value.as_str())))
    }
}

impl fmt::Debug for IdentityLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `-` sorts before `:`, so sorting by source alone does not give the order.
    #[test]
    fn labels_are_sorted_whatever_the_order_of_the_input() {
        let labels = IdentityLabels::new([("k8s", "b", "1"), ("k8s-x", "a", ""), ("k8s", "a", "=;"), ("k8s", "b", "2"), ("", "", "ü")]);
        let expected = [(":", "ü"), ("k8s-x:a", ""), ("k8s:a", "=;"), ("k8s:b", "2")];
        assert_eq!(labels.iter().collect::<Vec<_>>(), expected);
        assert_eq!((labels.get("k8s:b"), labels.get("k8s:c"), labels.is_empty()), (Some("2"), None, false));
        assert_eq!(labels, IdentityLabels::new([("", "", "ü"), ("k8s-x", "a", ""), ("k8s", "a", "=;"), ("k8s", "b", "2")]));
        assert_eq!(format!("{labels:?}"), r#"{":": "ü", "k8s-x:a": "", "k8s:a": "=;", "k8s:b": "2"}"#);
        assert!(IdentityLabels::new([]).is_empty());
    }
}
