//! Progress and result of the comparison of one kind's keys with the source. Pure.

use crate::model::{Divergence, Revision};

/// Start of the next range; `None` for the start of the kind.
pub(super) type RangeStart = Option<Vec<u8>>;

/// Comparison of the keys of one kind, range by range.
#[derive(Debug, Clone, Default)]
pub(super) struct KindComparison {
    /// Start of the next range.
    pub(super) start: RangeStart,
    /// Revision of the first range.
    pub(super) revision: Option<Revision>,
    pub(super) key_count: u64,
    /// First keys that differ, at most [`Divergence::KEYS_MAX`].
    pub(super) differing: Vec<String>,
    /// Number of keys that differ, in all ranges so far.
    pub(super) differing_count: u64,
    /// True if values are compared as well as revisions.
    pub(super) with_values: bool,
}

impl KindComparison {
    /// Adds the keys of a range that differ.
    pub(super) fn add_differing(&mut self, names: Vec<String>) {
        self.differing_count += names.len() as u64;
        let capacity = Divergence::KEYS_MAX - self.differing.len();
        self.differing.extend(names.into_iter().take(capacity));
    }

    /// Returns whether no range so far has a difference.
    pub(super) const fn is_equal(&self) -> bool {
        self.differing_count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_in_an_earlier_range_stays_a_difference() {
        let mut comparison = KindComparison::default();
        comparison.add_differing(Vec::new());
        assert!(comparison.is_equal());
        comparison.add_differing((10..30).map(|number| number.to_string()).collect());
        comparison.add_differing(vec!["30".to_owned()]);
        comparison.add_differing(Vec::new());
        assert!(!comparison.is_equal());
        let first: Vec<String> = (10..26).map(|number| number.to_string()).collect();
        assert_eq!((comparison.differing_count, comparison.differing), (21, first));
    }
}
