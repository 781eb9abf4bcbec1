//! Answers about an earlier time: `at=`.

use std::sync::Arc;
use std::time::SystemTime;

use axum::response::Response;
use serde::Serialize;

use crate::api::dto::meta::MetaOptions;
use crate::api::paging::pages::respond_with_object;
use crate::api::paging::scanner::DeferredScanner;
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::time_parameter::{age_of_past, before_history, parse_time_parameter};
use crate::api::routes::past_reading;
use crate::dto::meta::ItemMeta;
use crate::dto::streamed::EntryVersion;
use crate::dto::text::rfc3339;
use crate::handle::{DecodedPermit, Handle, PastReading, PastRecords, PastTime, Reading};
use crate::model::{ClusterName, EntryKey, Kind, Record};

/// An earlier time that a request asks for.
#[derive(Debug, Clone, Copy)]
pub(in crate::api::routes) struct RequestedTime {
    time: SystemTime,
    pub(in crate::api::routes) meta_options: MetaOptions,
}

impl RequestedTime {
    /// Parses the value of `at=`. `None` without one.
    ///
    /// # Errors
    /// A problem if it is not a time, or if the request limits the age of its answer.
    pub(in crate::api::routes) fn parse(at: Option<&String>, meta_options: MetaOptions) -> Result<Option<Self>, Problem> {
        let Some(at) = at else { return Ok(None) };
        if meta_options.has_age() {
            return Err(age_of_past());
        }
        Ok(Some(Self { time: parse_time_parameter("at", at, SystemTime::now())?, meta_options }))
    }

    /// Returns the states that the time may mean, for some kinds in some clusters. No cluster means
    /// all.
    ///
    /// # Errors
    /// A problem if the history begins later.
    pub(in crate::api::routes) fn resolve(self, past: &PastReading, kinds: &[Kind], clusters: &[ClusterName]) -> Result<PastTime, Problem> {
        past.time_at(self.time, kinds, clusters).ok_or_else(|| before_history(past))
    }

    /// Answers with the object of one key at the time.
    pub(in crate::api::routes) async fn respond_with_object<T: Serialize>(
        self,
        handle: &Handle,
        scanner: &DeferredScanner,
        key: EntryKey,
        convert: impl Fn(&Record, &Reading, ItemMeta) -> Option<T> + Send + 'static,
    ) -> Result<Response, Problem> {
        let past = past_reading(handle).await?;
        respond_with_object(&scanner.admit()?, false, move || {
            let time = self.resolve(&past, &[key.kind], std::slice::from_ref(&key.cluster))?;
            let found = past.object_at(&key, &time);
            let _memory = reserve_memory(&past.reading, &found)?;
            let object = found.first().and_then(|record| {
                let meta = ItemMeta::at(&past, &time, &found, Some(&key.cluster), self.meta_options);
                convert(record, &past.reading, meta)
            });
            object.ok_or_else(|| absent(&found, &time, &key.to_string(), &format!("key={key}")))
        })
        .await
    }
}

/// Returns the problem for an object that did not exist at a time. `selection` is the parameter of
/// `/v1/history` for it.
pub(in crate::api::routes) fn absent(found: &PastRecords, time: &PastTime, what: &str, selection: &str) -> Problem {
    let time = rfc3339(time.time());
    let state = if found.is_complete() {
        format!("{what} did not exist at {time}")
    } else {
        format!("it is not known whether {what} existed at {time}, because meshkeep did not observe everything at that time")
    };
    Problem::new(ProblemCode::NotFound, format!("{state}: /v1/history?{selection} lists its versions"))
}

/// Adds the last version of an identity that no cluster has to the problem about it, as far back as
/// the history reaches. Returns the problem unchanged if the history cannot be read now.
pub(in crate::api::routes) async fn with_last_version(
    handle: &Handle,
    scanner: &DeferredScanner,
    id: u32,
    clusters: Vec<ClusterName>,
    missing: Problem,
) -> Problem {
    let Ok(past) = past_reading(handle).await else { return missing };
    // even with too many requests in progress, it is known that no cluster has the identity
    let Ok(scanner) = scanner.admit() else { return missing };
    let last = scanner.run_once(move || {
        let last = past.last_version_of_identity(id, &clusters)?;
        Some(EntryVersion::new(&past, &last))
    });
    match last.await {
        Some(version) => missing.with_last_version(version),
        None => missing,
    }
}

/// Waits for the memory of the decoded records of an answer.
fn reserve_memory(reading: &Reading, found: &PastRecords) -> Result<Vec<DecodedPermit>, Problem> {
    let records = found.records.iter().chain(found.candidates.iter().map(|version| &version.record));
    let reserve =
        |record: &Arc<Record>| reading.reserve_memory_for(record).map_err(|error| Problem::no_memory(&record.key.to_string(), error));
    records.map(reserve).collect()
}
