//! Search for a key in a chunk.

use std::cmp::Ordering;

use super::Chunk;
use super::sections::ScopeGroup;
use crate::model::EntryKey;

impl Chunk {
    /// Returns the row of a key, by binary search. Rows count from 0 in key order.
    ///
    /// # Errors
    /// Returns the row before which the key would be inserted if it does not exist.
    pub fn find(&self, key: &EntryKey) -> Result<usize, usize> {
        let packed = &self.0;
        let order = |group: &ScopeGroup| group.kind.cmp(&key.kind).then_with(|| group.cluster.cmp_in_keys(&key.cluster));
        let group = packed.groups.binary_search_by(order).map(|index| &packed.groups[index]);
        let group = group.map_err(|index| packed.groups.get(index).map_or(packed.count, |group| group.start))?;
        let mut name = Vec::with_capacity(key.name.len() + 16);
        let (mut low, mut high) = (group.start, group.end);
        while low < high {
            let middle = low.midpoint(high);
            name.clear();
            packed.append_name(middle, &mut name);
            match name.as_slice().cmp(key.name.as_bytes()) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }
}
