//! Lists: pages, NDJSON, fields, searches, forms and caching.

mod caching;
pub(super) mod decoded;
mod fields;
mod forms;
pub(super) mod global_services;
pub(super) mod history;
mod history_gaps;
mod identities;
mod impact;
mod lines;
pub(super) mod pages;
mod paging;
mod past;
mod prometheus;
mod search;
