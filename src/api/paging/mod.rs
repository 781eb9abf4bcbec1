//! Lists as answers: pages with tokens, or NDJSON, made by scans.

pub(crate) mod lines;
pub(crate) mod list_builder;
pub(crate) mod list_request;
pub(crate) mod one_line;
pub(crate) mod page_starts;
pub(crate) mod pages;
pub(crate) mod scanner;
