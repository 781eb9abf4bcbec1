//! Filters and label selectors, and the facets by which a change finds the filters that it concerns.

pub(super) mod facet;
pub(super) mod filter;
pub(super) mod selector;
