//! Lists as answers: pages with tokens, or lines; and the scans that make them.

pub(crate) mod lines;
pub(crate) mod listing;
pub(crate) mod making;
pub(crate) mod one_line;
pub(crate) mod page_starts;
pub(crate) mod pages;
pub(crate) mod scanner;
