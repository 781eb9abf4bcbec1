//! Filters and label selectors, and the terms by which a change finds the filters that it
//! concerns.

pub(super) mod filter;
pub(super) mod filter_terms;
pub(super) mod selector;
