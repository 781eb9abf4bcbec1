//! Filters, label selectors, searches, and the terms by which the filters that a change may match
//! are looked up.

pub(super) mod filter;
pub(super) mod filter_terms;
pub(super) mod search_text;
pub(super) mod selector;
