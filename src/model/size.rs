//! Counts of keys, and of the bytes of keys and values.

use std::iter::Sum;
use std::ops::Add;

/// Number of keys, and of the raw bytes of the keys and their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Number of keys.
    pub keys: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Size of a scope in the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScopeSize {
    /// Entries that the last list or a later change confirmed: those that the source has.
    pub confirmed: Size,
    /// All entries of the scope, confirmed or not.
    pub all: Size,
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { keys: self.keys.saturating_add(other.keys), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl Sum for Size {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), Add::add)
    }
}
