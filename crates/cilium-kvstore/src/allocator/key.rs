//! Keys of the allocator: sets of labels in a canonical text form.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Set of labels as Cilium writes it into etcd: `<source>:<key>=<value>;` for each label, sorted by
/// key, regardless of the source (`SortedList`, `pkg/labels`). Nothing is escaped. Clones are
/// cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocatorKey(Arc<str>);

impl AllocatorKey {
    /// Creates a key from labels and their values. A label is `source:key`, for instance `k8s:app`.
    /// If two labels have the same key and different sources, the last one is used: Cilium stores
    /// labels by key alone.
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

    /// Wraps a text from a store without changing it.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Iterates over the labels as `(source:key, value)`. The source ends at the first `:`, and the
    /// key ends at the first `=` after it. A label without a source has the source `unspec`; a part
    /// without a key is skipped (`ParseLabel`, `pkg/labels`).
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.split(';').filter_map(|label| {
            let (name, value) = label.split_once('=').unwrap_or((label, ""));
            let key = name.split_once(':').map_or(name, |(_, key)| key);
            (!key.is_empty()).then_some((name, value))
        })
    }

    /// Returns the value of a label, by `source:key`.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels().find(|(label, _)| *label == name).map(|(_, value)| value)
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
