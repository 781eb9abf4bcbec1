//! A range of keys as etcd's requests encode it.

/// Keys from `start` (inclusive) to `end` (exclusive).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyInterval {
    pub(super) start: Vec<u8>,
    /// End of the interval (exclusive). `None` means one key if `is_single` is set, and no upper
    /// bound otherwise.
    pub(super) end: Option<Vec<u8>>,
    /// Set if the interval is the single key `start`.
    pub(super) is_single: bool,
}

impl KeyInterval {
    /// Creates an interval. An empty `range_end` means one key; one zero byte means all keys from
    /// `key` on.
    pub(super) fn new(key: &[u8], range_end: &[u8]) -> Self {
        let start = key.to_vec();
        let (end, is_single) = match range_end {
            [] => (None, true),
            [0] => (None, false),
            end => (Some(end.to_vec()), false),
        };
        Self { start, end, is_single }
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.is_before_end(key)
    }

    /// Returns whether a key is before the end of the interval.
    pub(super) fn is_before_end(&self, key: &[u8]) -> bool {
        match &self.end {
            Some(end) => key < end.as_slice(),
            None => !self.is_single || key <= self.start.as_slice(),
        }
    }

    /// Returns whether the whole interval is in the range from `from` (inclusive) to `to`
    /// (exclusive).
    pub(super) fn is_within(&self, from: &[u8], to: &[u8]) -> bool {
        let ends_before = match &self.end {
            Some(end) => end.as_slice() <= to,
            None => self.is_single && self.start.as_slice() < to,
        };
        self.start.as_slice() >= from && ends_before
    }

    /// Returns whether both bounds are valid UTF-8, as all keys are. The keys of other intervals
    /// can only be counted one by one.
    pub(super) fn has_utf8_bounds(&self) -> bool {
        str::from_utf8(&self.start).is_ok() && self.end.as_ref().is_none_or(|end| str::from_utf8(end).is_ok())
    }

    /// Returns whether the interval cannot contain any key.
    pub(super) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_are_not_utf8_are_detected() {
        let has_utf8_bounds = |key: &[u8], end: &[u8]| KeyInterval::new(key, end).has_utf8_bounds();
        assert_eq!([has_utf8_bounds(b"a", b""), has_utf8_bounds(b"a", b"\0"), has_utf8_bounds("é".as_bytes(), b"b")], [true; 3]);
        assert_eq!([has_utf8_bounds(b"a", b"\xff"), has_utf8_bounds(b"\xc3", b""), has_utf8_bounds(b"a", b"\xc3")], [false; 3]);
    }

    #[test]
    fn intervals_contain_the_same_keys_as_in_etcd() {
        let contains = |key: &[u8], end: &[u8]| {
            let interval = KeyInterval::new(key, end);
            [&b"a"[..], b"b", b"b\0", b"b/c", b"c"].map(|key| interval.contains(key))
        };
        assert_eq!(contains(b"b", b""), [false, true, false, false, false]);
        assert_eq!(contains(b"b", b"c"), [false, true, true, true, false]);
        assert_eq!(contains(b"b", b"\0"), [false, true, true, true, true]);
        assert_eq!(contains(b"\0", b"\0"), [true; 5]);
        assert_eq!(contains(b"b", b"a"), [false; 5]);
        assert_eq!(
            [(&b"b"[..], &b"a"[..]), (b"b", b"b"), (b"b", b"c"), (b"b", b""), (b"b", b"\0")]
                .map(|(key, end)| KeyInterval::new(key, end).is_empty()),
            [true, true, false, false, false]
        );
    }
}
