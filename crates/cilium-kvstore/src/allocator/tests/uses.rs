//! Model of the numbers that are in use, for the tests over the in-memory store and over etcd.

use std::collections::HashMap;

use super::{AllocatorKey, Id};

/// Checks that no key has two numbers and no number has two keys.
#[derive(Default)]
pub(super) struct UseModel {
    ids: HashMap<AllocatorKey, (Id, u32)>,
    keys: HashMap<Id, AllocatorKey>,
}

impl UseModel {
    pub(super) fn begin(&mut self, key: &AllocatorKey, id: Id) {
        let uses = self.ids.entry(key.clone()).or_insert((id, 0));
        assert_eq!(uses.0, id, "two numbers for {key}");
        uses.1 += 1;
        let other = self.keys.entry(id).or_insert_with(|| key.clone());
        assert_eq!(other, key, "two keys for {id}");
    }

    pub(super) fn end(&mut self, key: &AllocatorKey, id: Id) {
        let uses = self.ids.get_mut(key).unwrap();
        uses.1 -= 1;
        if uses.1 == 0 {
            self.ids.remove(key);
            self.keys.remove(&id);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.keys.is_empty()
    }
}
