//! Answers that join several records or clusters: explanations, missing addresses, global services
//! and the summary of all clusters.

pub(super) mod explain;
pub(super) mod global_services;
pub(super) mod history;
pub(super) mod impact;
pub(super) mod miss;
pub(super) mod past;
pub(super) mod past_list;
mod summary;
