//! Revisions of a scope's entries, for the comparison with the source.

use crate::model::{EntryKey, Scope, SourceStamp};
use crate::view::View;

impl View {
    /// Iterates over the keys of a scope from a name on, in order, with the origin of their newest
    /// bytes. Decodes nothing.
    pub fn source_stamps_from(&self, scope: &Scope, name: &str) -> impl Iterator<Item = (EntryKey, SourceStamp)> {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), name);
        let locations = self.records.scan_from(&start).take_while(move |location| location.is_in_scope(scope));
        locations.map(|location| (location.key(), self.records.source_at(&location)))
    }
}
