//! How much there is of something: keys, and the bytes of keys and values.

use std::iter::Sum;
use std::ops::Add;

/// Keys, and the raw bytes of them and of their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// How many keys.
    pub keys: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What is held of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScopeSize {
    /// What its last list, and the changes since, have confirmed: what it has at the source.
    pub confirmed: Size,
    /// What is held of the scope, confirmed or not.
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
