//! Answers with lists: pages with tokens, or NDJSON. Scans supply the items.

pub(crate) mod lines;
pub(crate) mod list_builder;
pub(crate) mod list_request;
pub(crate) mod one_line;
pub(crate) mod page_starts;
pub(crate) mod pages;
pub(crate) mod scanner;
