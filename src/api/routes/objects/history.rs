//! Route of earlier versions of entries.

use std::net::IpAddr;
use std::ops::ControlFlow;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use crate::admission::Scanner;
use crate::api::paging::lines::{self, LineBuilder};
use crate::api::paging::list_builder::PageBuffer;
use crate::api::paging::list_request::{decode_token, encode_token, invalid_token, list_limit};
use crate::api::paging::pages::respond_with_slices;
use crate::api::problem::Problem;
use crate::api::query::{HistoryQuery, Parameters};
use crate::api::render::answer_properties::MediaType;
use crate::api::routes::{cluster_in_path, past_reading};
use crate::api::state::ApiState;
use crate::dto::meta::UnknownPeriod;
use crate::dto::problem::ProblemDocument;
use crate::dto::streamed::{EntryVersion, VersionList};
use crate::handle::{PastReading, ScanEnd, ScanUsage, SliceLimit, VersionScan, VersionSelection, VersionStart, WorkSlice};
use crate::model::{EntryKey, Kind, Position, Sequence};

/// Number of versions that one slice of an NDJSON list reads from the history: about as many as fit
/// into the buffer for lines.
const LINES_PER_SLICE: usize = 1_000;

/// Versions of an address, a key, an identity, a pod or a node, newest first.
///
/// The current versions, and the versions that changes ended, as far back as the history reaches
/// (`--history-max-age`, `--history-max-bytes`). `ip`: every ipcache entry that covers the address.
/// `identity`: the identity and the ipcache entries that name it. `gaps` has the periods in which
/// meshkeep did not see changes when they happened. In NDJSON, the last line also has `complete`,
/// `gaps` and `since`, and `meta` has only `position`.
#[utoipa::path(get, path = "/v1/history", operation_id = "listVersions", tag = "history", params(HistoryQuery),
    responses(
        (status = 200, description = "A page of versions.", body = VersionList),
        (status = 404, description = "There is no such object.", body = ProblemDocument)
    ))]
pub(crate) async fn list_versions(
    State(state): State<ApiState>,
    query: Parameters<HistoryQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    let (media_type, limit) = (query.media_type, list_limit(query.values.limit, query.media_type)?);
    let selection = query.values.selection()?;
    let past = past_reading(&state.handle).await?;
    let start = query.values.start(&query.fingerprint, past.reading.position())?;
    let list = VersionListBuilder {
        scan: past.scan_versions(selection, start),
        past,
        media_type,
        page: PageBuffer::new(media_type, limit, None),
        limit,
        oldest: None,
        time_max: scanner.limits().page,
        spent: ScanUsage::default(),
        fingerprint: query.fingerprint,
    };
    if media_type == MediaType::Lines {
        return lines::respond(scanner, move || Ok(list)).await;
    }
    let mut builder = Some(list);
    respond_with_slices(&scanner, move |slice| {
        let Some(mut page) = builder.take() else { return ControlFlow::Continue(()) };
        match page.advance(slice) {
            ControlFlow::Break(next) => ControlFlow::Break(next.and_then(|next| page.finish_page(next.as_ref()))),
            ControlFlow::Continue(()) => {
                builder = Some(page);
                ControlFlow::Continue(())
            }
        }
    })
    .await
}

/// A list of versions in progress: a page, or NDJSON.
struct VersionListBuilder {
    past: PastReading,
    scan: VersionScan,
    media_type: MediaType,
    page: PageBuffer,
    limit: usize,
    /// Lowest sequence with which a version of the page began.
    oldest: Option<Sequence>,
    /// Limit of all slices of a page together.
    time_max: SliceLimit,
    spent: ScanUsage,
    fingerprint: String,
}

/// Last line of a list of versions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LastLine {
    complete: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<UnknownPeriod>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    meta: LastLineMeta,
}

/// `meta` of the last line. Only the last line of a list has this member.
#[derive(Debug, Serialize)]
struct LastLineMeta {
    position: String,
}

impl VersionListBuilder {
    /// Adds up to `count_max` versions in one slice.
    fn add_versions(&mut self, slice: &mut WorkSlice, count_max: usize) -> ScanEnd<VersionStart> {
        let Self { past, scan, page, oldest, .. } = self;
        scan.advance(slice, count_max, |version| {
            let is_added = page.push(&EntryVersion::new(past, version));
            if is_added {
                let first = version.record.last_sequence;
                *oldest = Some(oldest.map_or(first, |oldest| oldest.min(first)));
            }
            is_added
        })
    }

    /// Fills a page for one slice. Breaks with the start of the next page once the page is full or
    /// no version is left.
    fn advance(&mut self, slice: &mut WorkSlice) -> ControlFlow<Result<Option<VersionStart>, Problem>> {
        let end = self.add_versions(slice, self.limit.saturating_sub(self.page.count()));
        self.spent += slice.usage();
        ControlFlow::Break(match end {
            ScanEnd::Complete => Ok(None),
            ScanEnd::PageFull(start) => Ok(Some(start)),
            ScanEnd::Paused(start) if self.time_max.is_reached(self.spent) => Ok(Some(start)),
            ScanEnd::Paused(_) => return ControlFlow::Continue(()),
            ScanEnd::OverBudget(start, error) if self.page.count() == 0 => Err(Problem::no_memory(&start_text(&start), error)),
            ScanEnd::OverBudget(start, _) => Ok(Some(start)),
        })
    }

    /// Returns the page or the last lines, which are followed by the page with this start.
    fn finish_page(self, next: Option<&VersionStart>) -> Result<Vec<u8>, Problem> {
        let token = next.map(|start| encode_token(self.past.reading.position(), &self.fingerprint, &start_text(start)));
        let tail = VersionList::without_items(&self.past, &self.scan, self.oldest.filter(|_| next.is_some()), token);
        let bytes = if self.media_type == MediaType::Lines { self.page.finish(&LastLine::from(tail)) } else { self.page.finish(&tail) };
        bytes.map_err(|error| Problem::internal(format!("an answer cannot be written: {error}")))
    }
}

impl LineBuilder for VersionListBuilder {
    type Start = VersionStart;

    fn add_lines(&mut self, slice: &mut WorkSlice) -> ControlFlow<Result<Option<VersionStart>, Problem>> {
        let free = self.limit.saturating_sub(self.page.count());
        match self.add_versions(slice, free.min(LINES_PER_SLICE)) {
            ScanEnd::Complete => ControlFlow::Break(Ok(None)),
            ScanEnd::PageFull(start) if self.page.count() >= self.limit => ControlFlow::Break(Ok(Some(start))),
            ScanEnd::OverBudget(start, error) if self.page.has_no_lines() => {
                ControlFlow::Break(Err(Problem::no_memory(&start_text(&start), error)))
            }
            // these lines are sent, and the next slice continues
            ScanEnd::PageFull(_) | ScanEnd::Paused(_) | ScanEnd::OverBudget(..) => ControlFlow::Continue(()),
        }
    }

    fn take_lines(&mut self) -> Vec<u8> {
        self.page.take_lines()
    }

    fn finish(self, next: Option<VersionStart>) -> Result<Vec<u8>, Problem> {
        self.finish_page(next.as_ref())
    }
}

impl From<VersionList> for LastLine {
    fn from(list: VersionList) -> Self {
        let VersionList { items: _, complete, gaps, since, next_page_token, position } = list;
        Self { complete, gaps, since, next_page_token, meta: LastLineMeta { position } }
    }
}

/// Returns the text of a start in a page token.
fn start_text(start: &VersionStart) -> String {
    match start {
        VersionStart::Current(key) => key.to_string(),
        VersionStart::Ended(sequence) => sequence.to_string(),
    }
}

fn parse_start(text: &str) -> Option<VersionStart> {
    let sequence = || text.parse().ok().map(Sequence).map(VersionStart::Ended);
    EntryKey::from_cache_form(text).map(VersionStart::Current).or_else(sequence)
}

impl HistoryQuery {
    fn selection(&self) -> Result<VersionSelection, Problem> {
        let Self { ip, key, identity, pod, node, cluster, .. } = self;
        let bad = Problem::bad_parameter;
        let split = |name: &'static str, text: &str, form: &str| {
            let parts = text.split_once('/').map(|(first, second)| (first.to_owned(), second.to_owned()));
            parts.ok_or_else(|| bad(name, format!("{text:?} is not of the form {form}")))
        };
        let selections = [
            ip.as_ref().map(|text| {
                let ip: Result<IpAddr, _> = text.parse();
                ip.map(|ip| VersionSelection::Covering(ip.to_canonical())).map_err(|_| bad("ip", format!("{text:?} is not an IP address")))
            }),
            key.as_ref().map(|text| {
                let unknown = || bad("key", format!("{text:?} is not a key in cache form, such as cilium/cache/nodes/v1/paris/worker-1"));
                EntryKey::from_cache_form(text).filter(|key| key.kind < Kind::Cluster).map(VersionSelection::Key).ok_or_else(unknown)
            }),
            identity.map(|identity| Ok(VersionSelection::Identity(identity))),
            pod.as_ref().map(|text| {
                let (namespace, name) = split("pod", text, "NAMESPACE/NAME")?;
                Ok(VersionSelection::Pod { namespace, name })
            }),
            node.as_ref().map(|text| {
                let (cluster, name) = split("node", text, "CLUSTER/NAME")?;
                Ok(VersionSelection::Key(EntryKey::new(Kind::Node, cluster_in_path(&cluster)?, name)))
            }),
            cluster.as_ref().map(|text| {
                let clusters = vec![cluster_in_path(text)?];
                Ok(VersionSelection::Scopes { kinds: Kind::STORED.to_vec(), clusters })
            }),
        ];
        let mut given = selections.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(selection), None) => selection,
            (None, _) => Err(Problem::bad_parameter("ip", "is missing: give exactly one of ip, key, identity, pod, node and cluster")),
            (Some(_), Some(_)) => {
                Err(Problem::bad_parameter("ip", "is not the only selection: give exactly one of ip, key, identity, pod, node and cluster"))
            }
        }
    }

    /// Returns the start of the page, from the token.
    fn start(&self, fingerprint: &str, head: Position) -> Result<Option<VersionStart>, Problem> {
        let Some(token) = &self.page_token else { return Ok(None) };
        let (_, start) = decode_token(token, fingerprint, head)?;
        parse_start(&start).map(Some).ok_or_else(invalid_token)
    }
}
