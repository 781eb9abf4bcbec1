//! Route of batch lookups. The answer is sent while it is computed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::lookup_sources::LookupSources;
use crate::admission::{MemoryPermit, Scanner};
use crate::api::dto::meta::{MetaOptions, SourceCache};
use crate::api::guard::BODY_BYTES_MAX;
use crate::api::paging::pages::json_response;
use crate::api::paging::scanner;
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{Parameters, PastItemQuery};
use crate::api::routes::objects::past::RequestedTime;
use crate::api::routes::past_reading;
use crate::api::state::ApiState;
use crate::dto::lookup::{LookupItem, LookupList, LookupRequest};
use crate::dto::meta::{ListMeta, PastMeta, SourceAge};
use crate::dto::problem::ProblemDocument;
use crate::dto::streamed::EntryVersion;
use crate::handle::{LOOKUP_KINDS, LookupMatch, PastLookup, PastReading, PastTime, Reading, SourceMeta, WorkSlice};
use crate::model::{ClusterName, Kind, Scope};
use crate::server::BodyTimeout;

/// Maximum number of addresses per batch (docs/use/api/lookups-and-explain.md): about 10 ms of
/// work.
const BATCH_LENGTH_MAX: usize = 10_000;

/// Size in bytes at which a part of the answer is sent: half of the 128 KiB that a connection
/// buffers while its client does not read.
const CHUNK_BYTES: usize = 64 << 10;

/// A batch in progress. All lookups use one snapshot.
#[derive(Debug)]
struct LookupBatch {
    reading: Reading,
    ips: Arc<[String]>,
    next: usize,
    sources_used: LookupSources,
    meta_options: MetaOptions,
    ages: AgeCache,
    /// Set if the answers are about an earlier time.
    past: Option<PastBatch>,
}

/// Lookups at an earlier time.
#[derive(Debug, Clone)]
struct PastBatch {
    past: PastReading,
    time: PastTime,
    is_complete: bool,
    /// Clusters of the entries, whose identities count for the completeness.
    clusters: BTreeSet<ClusterName>,
}

/// Ages of the answers of a batch, each computed when it is first needed.
#[derive(Debug, Default)]
struct AgeCache {
    of_matches: SourceCache,
    /// Age of an answer without a match: the age of the oldest ipcache of any cluster.
    without_match: Option<SourceAge>,
}

/// A batch that is being sent, with its memory permit.
struct LookupStream {
    scanner: Scanner,
    _permit: MemoryPermit,
    /// `None` once the last bytes were sent.
    batch: Option<LookupBatch>,
}

/// Lookups of up to 10,000 addresses, all in one snapshot.
///
/// The answers are those of single lookups, in the order of the request, each with its age. A
/// text that is not an address gets an item with `error`. meshkeep sends the answer while it
/// computes it. With `at=`, an item has no age, but `complete` and `candidates`.
#[utoipa::path(post, path = "/v1/ipcache/lookup", operation_id = "lookupIps", tag = "ipcache", params(PastItemQuery),
    request_body(content = LookupRequest, description = "The addresses."),
    responses(
        (status = 200, description = "One item for each address, in the order of the request.", body = LookupList),
        (status = 403, description = "A web page of another origin sent the request.", body = ProblemDocument)
    ))]
pub(crate) async fn lookup_ips(
    State(state): State<ApiState>,
    query: Parameters<PastItemQuery>,
    scanner: Scanner,
    body: Result<Json<LookupRequest>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(LookupRequest { ips }) = body.map_err(|rejection| bad_body(&rejection))?;
    if ips.len() > BATCH_LENGTH_MAX {
        return Err(Problem::bad_parameter(
            "ips",
            format!("{} addresses are too many: send at most {BATCH_LENGTH_MAX} in one request", ips.len()),
        ));
    }
    let meta_options = query.values.meta_options()?;
    let past = match RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        Some(at) => Some(PastBatch::begin(past_reading(&state.handle).await?, at, &scanner).await?),
        None => None,
    };
    let (reading, ips) = (state.handle.reading().await?, Arc::<[String]>::from(ips));
    let permit = scanner::acquire_page_memory(&scanner).await?;
    let batch = || LookupBatch {
        reading: reading.clone(),
        ips: Arc::clone(&ips),
        next: 0,
        sources_used: LookupSources::default(),
        meta_options,
        ages: AgeCache::default(),
        past: past.clone(),
    };
    if meta_options.has_age() {
        // the sources are known only after all lookups, but a refusal must be sent before the first
        // byte of the answer
        let mut batch = batch();
        let sources = scanner.run(move |slice| batch.collect_sources(slice)).await;
        meta_options.check(&sources)?;
    }
    let response = LookupStream { scanner, _permit: permit, batch: Some(batch()) };
    // fused, because the compression layer polls once more after the end
    Ok(json_response(Body::from_stream(stream::unfold(response, LookupStream::next).fuse())))
}

impl LookupBatch {
    /// Collects the sources of all lookups, without building the answer.
    fn collect_sources(&mut self, slice: &mut WorkSlice) -> ControlFlow<Vec<SourceMeta>> {
        while let Some(text) = self.ips.get(self.next) {
            if slice.is_over() {
                return ControlFlow::Continue(());
            }
            slice.count_row();
            self.next += 1;
            if let Some(found) = self.lookup(text) {
                self.sources_used.add(&found);
            }
        }
        ControlFlow::Break(self.sources_used.sources(&self.reading))
    }

    fn lookup(&self, text: &str) -> Option<Vec<LookupMatch>> {
        let ip: IpAddr = text.parse().ok()?;
        Some(self.reading.lookup(ip.to_canonical()))
    }

    /// Returns the next bytes, and whether they are the last.
    fn next_bytes(&mut self, slice: &mut WorkSlice) -> Result<(Vec<u8>, bool), serde_json::Error> {
        let mut bytes = Vec::with_capacity(CHUNK_BYTES);
        if self.next == 0 {
            bytes.extend_from_slice(b"{\"items\":[");
        }
        while let Some(text) = self.ips.get(self.next) {
            if slice.is_over() || bytes.len() >= CHUNK_BYTES {
                return Ok((bytes, false));
            }
            slice.count_row();
            if self.next > 0 {
                bytes.push(b',');
            }
            let text = text.clone();
            serde_json::to_writer(&mut bytes, &self.answer(&text))?;
            self.next += 1;
        }
        bytes.extend_from_slice(b"],\"meta\":");
        let meta = match &self.past {
            Some(past) => past.meta(self.meta_options),
            None => ListMeta::new(self.reading.position().to_string(), &self.sources_used.sources(&self.reading), self.meta_options),
        };
        serde_json::to_writer(&mut bytes, &meta)?;
        bytes.push(b'}');
        Ok((bytes, true))
    }

    fn answer(&mut self, text: &str) -> LookupItem {
        if let (Some(past), Ok(ip)) = (&mut self.past, text.parse::<IpAddr>()) {
            return past.answer(text, ip.to_canonical());
        }
        let Some(found) = self.lookup(text) else { return LookupItem::failed(text) };
        let age = if self.meta_options.wants_sources() { self.ages.age_of(&found, &self.reading) } else { None };
        let item = LookupItem::new(text, &found, age, &self.reading);
        self.sources_used.add(&found);
        item
    }
}

impl PastBatch {
    async fn begin(past: PastReading, at: RequestedTime, scanner: &Scanner) -> Result<Self, Problem> {
        let resolve = move || {
            let time = at.resolve(&past, &LOOKUP_KINDS, &[])?;
            Ok(Self { past, time, is_complete: true, clusters: BTreeSet::new() })
        };
        scanner.run_once(resolve).await
    }

    fn answer(&mut self, text: &str, ip: IpAddr) -> LookupItem {
        let PastLookup { matches, covering } = self.past.lookup_at(ip, &self.time);
        self.is_complete &= covering.is_complete();
        self.clusters.extend(matches.iter().map(|found| found.record.key.cluster.clone()));
        LookupItem {
            complete: Some(covering.is_complete()),
            candidates: covering.candidates.iter().map(|version| EntryVersion::new(&self.past, version)).collect(),
            ..LookupItem::new(text, &matches, None, &self.past.reading)
        }
    }

    /// Returns the `meta` of all answers.
    fn meta(&self, meta_options: MetaOptions) -> ListMeta {
        let is_used = |scope: &Scope| scope.kind != Kind::Identity || self.clusters.contains(&scope.cluster);
        let not_observed = self.time.not_observed().iter().filter(|(scope, _)| is_used(scope));
        ListMeta {
            past: PastMeta::new(self.time.time(), self.is_complete, not_observed),
            ..ListMeta::new(self.past.reading.position().to_string(), &[], meta_options)
        }
    }
}

impl AgeCache {
    /// Returns the age of one lookup's answer.
    fn age_of(&mut self, found: &[LookupMatch], reading: &Reading) -> Option<SourceAge> {
        let Some(LookupMatch { record, .. }) = found.first() else {
            if self.without_match.is_none() {
                let mut sources_used = LookupSources::default();
                sources_used.add(found);
                self.without_match = SourceAge::oldest(&sources_used.sources(reading));
            }
            return self.without_match.clone();
        };
        let (_, age) = self.of_matches.source_of(reading, record);
        Some(age)
    }
}

impl LookupStream {
    /// Returns the next bytes. They are computed once the socket accepts them.
    async fn next(mut self) -> Option<(Result<Bytes, serde_json::Error>, Self)> {
        let batch = self.batch.take()?;
        let (outcome, batch) = self.scanner.run_slice(batch, LookupBatch::next_bytes).await;
        let outcome = outcome.map(|(bytes, is_last)| {
            self.batch = (!is_last).then_some(batch);
            Bytes::from(bytes)
        });
        Some((outcome, self))
    }
}

fn bad_body(rejection: &JsonRejection) -> Problem {
    const EXAMPLE: &str = r#"{"ips":["10.1.2.40","fd00::1"]}"#;
    let (code, detail) = match rejection {
        JsonRejection::MissingJsonContentType(_) => (
            ProblemCode::UnsupportedMediaType,
            format!("the content type must be application/json: send Content-Type: application/json and a body such as {EXAMPLE}"),
        ),
        JsonRejection::JsonSyntaxError(_) => (ProblemCode::BadRequest, format!("the body is not JSON: send a body such as {EXAMPLE}")),
        JsonRejection::JsonDataError(_) => (
            ProblemCode::BadRequest,
            format!(
                "the body is not the expected JSON: send a body such as {EXAMPLE}, with the member ips (a list of strings) and no other"
            ),
        ),
        other if other.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            (ProblemCode::TooLarge, format!("a body may have at most {BODY_BYTES_MAX} bytes: send several requests"))
        }
        other if BodyTimeout::is_cause_of(other) => {
            (ProblemCode::BodyTimeout, format!("the body did not arrive in time: send {EXAMPLE} again"))
        }
        _ => (ProblemCode::BadRequest, format!("the body is incomplete: send {EXAMPLE} again")),
    };
    Problem::new(code, detail)
}
