//! Progress and result of the comparison of one kind's keys with the source. Pure.

use crate::model::{Divergence, Revision};

/// Maximum number of keys of the source in an answer. Twice the entries of a range, because the
/// source may have keys that the mirror lacks.
const ANSWER_KEYS_MAX: u32 = 2_048;

/// Number of keys in the first answer with values. A value of etcd has at most 1.5 MiB by default,
/// so the answer fits into the 32 MiB of a message.
const FIRST_ANSWER_KEYS: u32 = 16;

/// Size that an answer with values should not exceed: as much as a list decodes at a time.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Start of the next range; `None` for the start of the kind.
pub(super) type RangeStart = Option<Vec<u8>>;

/// Size of an answer of the source.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerSize {
    keys: u64,
    bytes: u64,
}

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
    /// Size of the last answer with values.
    pub(super) last_answer: Option<AnswerSize>,
}

impl KindComparison {
    /// Adds the keys of a range that differ.
    pub(super) fn add_differing(&mut self, names: Vec<String>) {
        self.differing_count += names.len() as u64;
        let capacity = Divergence::KEYS_MAX - self.differing.len();
        self.differing.extend(names.into_iter().take(capacity));
    }

    /// Returns the maximum number of keys in the next answer. With values, its size should stay
    /// below [`ANSWER_BYTES_MAX`]: the values of a kind are of similar size.
    pub(super) fn answer_limit(&self) -> u32 {
        if !self.with_values {
            return ANSWER_KEYS_MAX;
        }
        let Some(AnswerSize { keys, bytes }) = self.last_answer else { return FIRST_ANSWER_KEYS };
        let fitting = ANSWER_BYTES_MAX.saturating_mul(keys) / bytes.max(1);
        // grows slowly, because larger values may follow
        u32::try_from(fitting.clamp(1, keys.saturating_mul(2).max(1))).map_or(ANSWER_KEYS_MAX, |keys| keys.min(ANSWER_KEYS_MAX))
    }

    /// Records the size of an answer.
    pub(super) fn record_answer(&mut self, keys: u64, bytes: u64) {
        self.last_answer = Some(AnswerSize { keys, bytes });
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
    fn answers_with_values_are_limited_in_bytes() {
        let mut comparison = KindComparison::default();
        assert_eq!(comparison.answer_limit(), ANSWER_KEYS_MAX);
        comparison.with_values = true;
        let mut limits = Vec::new();
        for bytes_per_key in [300, 300, 300, 300, 300, 300, 300, 300, 20_000, 20_000, 2_000_000, 2_000_000, 100_000] {
            let limit = u64::from(comparison.answer_limit());
            limits.push(limit);
            comparison.record_answer(limit, limit * bytes_per_key);
        }
        assert_eq!(limits, [16, 32, 64, 128, 256, 512, 1_024, 2_048, 2_048, 52, 52, 1, 1]);
        comparison.record_answer(0, 0);
        assert_eq!(comparison.answer_limit(), 1, "an empty range");
    }

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
