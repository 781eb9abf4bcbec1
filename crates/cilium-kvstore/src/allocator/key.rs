//! What a number is allocated for: a set of labels in its one form of text.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A set of labels as Cilium writes it into etcd: `<source>:<key>=<value>;` for each, in the order of keys, whatever their sources
/// (`SortedList`, `pkg/labels`). Nothing is escaped. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocatorKey(Arc<str>);

impl AllocatorKey {
    /// Labels by `source:key`, for instance `k8s:app`. Of two labels with the same key and different sources the last one counts: Cilium
    /// holds labels by key alone.
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut by_key = BTreeMap::new();
        for (name, value) in labels {
            let (source, key) = name.split_once(':').unwrap_or(("unspec", name));
            by_key.insert(key, (source, value));
        }
        let mut text = String::new();
        for (key, (source, value)) in by_key {
            for part in [source, ":", key, "=", value, ";"] {
                text.push_str(part);
            }
        }
        Self(text.into())
    }

    /// The text as it stands in a store, taken as it is.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The labels, by `source:key`. The first `:` ends the source and the first `=` behind it the key; one without a source is `unspec`, a
    /// part without a key none (`ParseLabel`, `pkg/labels`).
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.split(';').filter_map(|label| {
            let (name, value) = label.split_once('=').unwrap_or((label, ""));
            let key = name.split_once(':').map_or(name, |(_, key)| key);
            (!key.is_empty()).then_some((name, value))
        })
    }

    /// The value of a label, by `source:key`.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels().find(|(other, _)| *other == name).map(|(_, value)| value)
    }
}

impl fmt::Display for AllocatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AllocatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
