//! The change stream.

mod changes;
mod problem_stream;
mod shared;
pub(super) mod streams;
