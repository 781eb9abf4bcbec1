//! Single answers, errors, metrics and the OpenAPI document.

mod answers;
mod documents;
mod errors;
mod explanations;
mod mesh_sizes;
mod meta;
mod metrics;
mod probes;
pub(super) mod problems;
mod reflection;
