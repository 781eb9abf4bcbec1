//! Answers that join several records: explanations, missing addresses and global services.

pub(super) mod explain;
pub(super) mod global_services;
pub(super) mod miss;
