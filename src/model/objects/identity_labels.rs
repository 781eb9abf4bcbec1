//! The labels of an identity, in one piece: every lookup of an address gives those of the identity behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::model::LabelSet;

/// Labels by `source:key`, in order of that. Cloning shares them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct IdentityLabels(Arc<Joined>);

#[derive(PartialEq, Eq, Default)]
struct Joined {
    /// Keys and values, one behind the other.
    text: Box<str>,
    /// Where each key ends, and its value.
    ends: Box<[(u32, u32)]>,
}

/// Room for those of a pod: `app` and what Cilium adds.
const USUAL_LENGTH: usize = 512;
const USUAL_COUNT: usize = 8;

impl IdentityLabels {
    /// Labels by source, key and value; of one that comes again the last value counts. Those of Cilium come in order.
    pub fn new<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> Self {
        let labels = Self::joined(labels.into_iter().map(|(source, key, value)| ([source, ":", key], value)));
        if labels.iter().is_sorted_by(|(one, _), (next, _)| one < next) {
            return labels;
        }
        let sorted: BTreeMap<&str, &str> = labels.iter().collect();
        Self::joined(sorted.into_iter().map(|(key, value)| ([key], value)))
    }

    /// Labels in order, each with the parts of its `source:key`.
    fn joined<'a, const PARTS: usize>(labels: impl Iterator<Item = ([&'a str; PARTS], &'a str)>) -> Self {
        let (mut text, mut ends) = (String::with_capacity(USUAL_LENGTH), Vec::with_capacity(USUAL_COUNT));
        for (key, value) in labels {
            text.extend(key);
            let key_end = end(&text);
            text.push_str(value);
            ends.push((key_end, end(&text)));
        }
        Self(Arc::new(Joined { text: text.into(), ends: ends.into() }))
    }

    /// Each `source:key` with its value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.0.ends.iter().map(move |(key_end, value_end)| {
            let (key_end, value_end) = (*key_end as usize, *value_end as usize);
            let label = (&self.0.text[start..key_end], &self.0.text[key_end..value_end]);
            start = value_end;
            label
        })
    }

    /// The value of a `source:key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// How many bytes of memory they take.
    #[must_use]
    pub fn footprint(&self) -> usize {
        size_of::<Joined>() + self.0.text.len() + size_of_val(&*self.0.ends)
    }
}

/// How long a text is: no value that etcd takes has 4 GiB.
fn end(text: &str) -> u32 {
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

impl From<LabelSet> for IdentityLabels {
    fn from(labels: LabelSet) -> Self {
        Self::joined(labels.iter().map(|(key, value)| ([key.as_str()], value.as_str())))
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

    /// `-` sorts below `:`, so that sources alone do not give the order.
    #[test]
    fn labels_are_a_sorted_map_whatever_order_they_come_in() {
        let labels = IdentityLabels::new([("k8s", "b", "1"), ("k8s-x", "a", ""), ("k8s", "a", "=;"), ("k8s", "b", "2"), ("", "", "ü")]);
        let expected = [(":", "ü"), ("k8s-x:a", ""), ("k8s:a", "=;"), ("k8s:b", "2")];
        assert_eq!(labels.iter().collect::<Vec<_>>(), expected);
        assert_eq!((labels.get("k8s:b"), labels.get("k8s:c"), labels.is_empty()), (Some("2"), None, false));
        assert_eq!(labels, IdentityLabels::new([("", "", "ü"), ("k8s-x", "a", ""), ("k8s", "a", "=;"), ("k8s", "b", "2")]));
        assert_eq!(format!("{labels:?}"), r#"{":": "ü", "k8s-x:a": "", "k8s:a": "=;", "k8s:b": "2"}"#);
        assert!(IdentityLabels::new([]).is_empty());
    }
}
