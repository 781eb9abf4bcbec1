//! Handlers of the routes, one file per subject.

pub(crate) mod clusters;
pub(crate) mod config;
pub(crate) mod documents;
pub(crate) mod entries;
pub(crate) mod exports;
pub(crate) mod global_services;
pub(crate) mod impact;
pub(crate) mod ipcache;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod objects;
pub(crate) mod page;
pub(crate) mod probes;
pub(crate) mod problems;
pub(crate) mod prometheus;
pub(crate) mod verifications;

use super::dto::meta::MetaOptions;
use super::problem::{Problem, ProblemCode};
use super::query::time_parameter::without_history;
use crate::dto::meta::ItemMeta;
use crate::handle::{Handle, PastReading, Reading};
use crate::model::{ClusterName, EntryKey, Record};

/// Parses a cluster's name in a path. An invalid name gets 404, because no such cluster can exist.
fn cluster_in_path(name: &str) -> Result<ClusterName, Problem> {
    ClusterName::parse(name).map_err(|error| Problem::new(ProblemCode::NotFound, error.to_string()))
}

/// Returns the problem for a path that cannot be parsed. All parameters are strings, so the only
/// possible cause is an escape that is not UTF-8.
fn bad_path(_: &axum::extract::rejection::PathRejection) -> Problem {
    Problem::new(ProblemCode::BadRequest, "the path has an escape that is not UTF-8: write %C3%A9 for é, and %2F for a slash in a name")
}

/// Returns the newest snapshot with its history.
///
/// # Errors
/// A problem if meshkeep keeps no history, or if the store is still loading.
async fn past_reading(handle: &Handle) -> Result<PastReading, Problem> {
    let past = handle.past_reading().await?.ok_or_else(without_history)?;
    Ok(past.with_exact_times())
}

/// Returns the object of one key with its `meta`. `None` if the mirror does not have it.
///
/// # Errors
/// A problem if the data is older than the request allows.
fn find_object<T>(
    reading: &Reading,
    key: &EntryKey,
    meta_options: MetaOptions,
    convert: impl Fn(&Record, &Reading, ItemMeta) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let Some(record) = reading.record(key).filter(|record| record.object.is_some()) else { return Ok(None) };
    Ok(convert(&record, reading, ItemMeta::from_record(reading, &record, meta_options)?))
}
