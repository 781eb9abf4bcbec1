//! One function for each route, in one file for each kind of thing.

pub(crate) mod clusters;
pub(crate) mod documents;
pub(crate) mod entries;
pub(crate) mod exports;
pub(crate) mod ipcache;
pub(crate) mod metrics;
pub(crate) mod objects;
pub(crate) mod probes;

use super::problem::{Code, Problem};
use crate::model::ClusterName;

/// A cluster's name in a path: one that cannot be a name cannot be found.
fn cluster_in_path(name: &str) -> Result<ClusterName, Problem> {
    ClusterName::parse(name).map_err(|error| Problem::new(Code::NotFound, error.to_string()))
}

/// A path whose parts cannot be read, for instance for escapes that are not UTF-8.
fn bad_path(rejection: &axum::extract::rejection::PathRejection) -> Problem {
    Problem::new(Code::BadRequest, format!("the path cannot be read: {}", rejection.body_text()))
}
