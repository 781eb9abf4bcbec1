//! Parsing of list requests and page tokens. A token contains the position of the first page. A
//! client that has read all pages continues with the change stream after this position (`after=`),
//! and converges to the exact state.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::page_starts::PAGE_STARTS;
use crate::admission::MemoryPermit;
use crate::api::dto::meta::MetaOptions;
use crate::api::problem::Problem;
use crate::api::query::time_parameter::{age_of_past, before_history, parse_time_parameter};
use crate::api::query::{ListParameters, ListQuery, Parameters};
use crate::api::render::answer_properties::MediaType;
use crate::dto::meta::ListMeta;
use crate::handle::{Filter, PastMirror, PastReading, Reading, SequenceAt};
use crate::model::{ClusterName, EntryKey, Kind, Position, ReaderPosition, Sequence};

/// Default number of items per page (docs/use/api/paging.md).
const LIMIT_DEFAULT: u32 = 500;

/// Maximum number of items per page (docs/use/api/paging.md). If the items have more than 419 bytes
/// on average, the page reaches [`PAGE_BYTES_MAX`] first.
const LIMIT_MAX: u32 = 10_000;

/// Maximum bytes of the items of a page (docs/use/api/paging.md). One item usually has at most 1.5
/// MiB, etcd's limit for a value.
pub(crate) const PAGE_BYTES_MAX: usize = 4 << 20;

/// Version of the format of page tokens.
const TOKEN_VERSION: &str = "2";

/// A parsed list request.
#[derive(Debug, Clone)]
pub(crate) struct ListRequest {
    pub(crate) reading: Reading,
    pub(crate) filter: Filter,
    /// Maximum number of items. For NDJSON without `limit`, there is none.
    pub(crate) limit: usize,
    meta_options: MetaOptions,
    /// Start of the page, from the token.
    pub(crate) start: Option<String>,
    position: Position,
    fingerprint: String,
    /// The mirror at the time of the list; `None` for a list of the current objects.
    pub(crate) past: Option<PastMirror>,
    /// Memory of a list at an earlier time.
    _past_memory: Option<Arc<MemoryPermit>>,
}

/// Snapshot from which a list is made.
#[derive(Debug)]
pub(crate) enum ListSnapshot {
    /// The current mirror.
    Current(Reading),
    /// The mirror with its history, and the memory of a list at an earlier time.
    Past(PastReading, Arc<MemoryPermit>),
}

impl From<Reading> for ListSnapshot {
    fn from(reading: Reading) -> Self {
        Self::Current(reading)
    }
}

impl ListRequest {
    /// Parses the parameters for a snapshot. For a list of the past it reads files, so it needs a
    /// thread that may block.
    pub(crate) fn new<Q: ListQuery>(snapshot: ListSnapshot, query: &Parameters<Q>) -> Result<Self, Problem> {
        let ListParameters { limit, page_token, meta_options, at } = query.values.common()?;
        let limit = list_limit(limit, query.media_type)?;
        let (reading, past, past_memory) = match snapshot {
            ListSnapshot::Current(reading) => (reading, None, None),
            ListSnapshot::Past(past, memory) => (past.reading.clone(), Some(past), Some(memory)),
        };
        let token = page_token.map(|token| decode_token(token, &query.fingerprint, reading.position())).transpose()?;
        let (position, mut start) = token.map_or((reading.position(), None), |(position, key)| (position, Some(key)));
        let past = match (past, at) {
            (Some(past), Some(at)) => Some(match start.take() {
                // the time of the first page, also if it was a duration before then
                Some(text) => {
                    let (mirror, key) = parse_past_start(&past, &text).ok_or_else(invalid_token)?;
                    start = Some(key);
                    mirror
                }
                None if meta_options.has_age() => return Err(age_of_past()),
                None => past.mirror_at(parse_time_parameter("at", at, SystemTime::now())?).ok_or_else(|| before_history(&past))?,
            }),
            _ => None,
        };
        let node_host_ips = |name: &str| past.as_ref().map_or_else(|| reading.node_host_ips(name), |mirror| mirror.node_host_ips(name));
        let filter = query.values.filter(&node_host_ips)?;
        let fingerprint = query.fingerprint.clone();
        Ok(Self { reading, filter, limit, meta_options, start, position, fingerprint, past, _past_memory: past_memory })
    }

    /// Returns this request with another filter.
    pub(crate) fn with_filter(&self, filter: Filter) -> Self {
        Self { filter, ..self.clone() }
    }

    /// Returns warnings about parts of the request that are valid but probably a mistake.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let summary = self.reading.summary();
        let unknown = self.filter.clusters.iter().filter(|cluster| summary.cluster(cluster).is_none());
        // a cluster may have existed at an earlier time
        let unknown = unknown.filter(|_| self.past.is_none());
        let of_clusters = unknown.map(|cluster| format!("cluster: there is no cluster {cluster}, /v1/clusters lists all clusters"));
        let has_no_node = self.filter.hosts.as_ref().is_some_and(Vec::is_empty);
        let without_node = match self.past {
            Some(_) => "node: meshkeep knows of no node of that name at that time, /v1/nodes?at=TIME lists the nodes of that time",
            None => "node: there is no node of that name, /v1/nodes lists all nodes",
        };
        let of_node = has_no_node.then(|| without_node.to_owned());
        of_clusters.chain(of_node).collect()
    }

    /// Returns the key that the page begins with.
    pub(crate) fn start_key(&self) -> Result<Option<EntryKey>, Problem> {
        self.start.as_deref().map(|key| EntryKey::from_cache_form(key).ok_or_else(invalid_token)).transpose()
    }

    /// Returns the text that the page begins with.
    pub(crate) fn start_text(&self) -> Option<&str> {
        self.start.as_deref()
    }

    /// Returns the cluster that the page begins with.
    pub(crate) fn start_cluster(&self) -> Result<Option<ClusterName>, Problem> {
        self.start.as_deref().map(|name| ClusterName::parse(name).map_err(|_| invalid_token())).transpose()
    }

    /// Returns the token of the page that begins with a key.
    pub(crate) fn token(&self, next: Option<impl std::fmt::Display>) -> Option<String> {
        next.map(|key| {
            let start = self.past.as_ref().map_or_else(|| key.to_string(), |mirror| past_start_text(mirror, &key.to_string()));
            encode_token(self.position, &self.fingerprint, &start)
        })
    }

    /// Returns the `meta` of a list of these kinds.
    ///
    /// # Errors
    /// Returns a problem if the data is older than the request allows.
    pub(crate) fn meta(&self, kinds: &[Kind]) -> Result<ListMeta, Problem> {
        let wanted = &self.filter.clusters;
        self.meta_where(kinds, |name| wanted.is_empty() || wanted.contains(name))
    }

    /// Returns the `meta` of a list of these kinds of the clusters that `is_wanted` accepts.
    ///
    /// # Errors
    /// Returns a problem if the data is older than the request allows.
    pub(crate) fn meta_where(&self, kinds: &[Kind], is_wanted: impl Fn(&ClusterName) -> bool) -> Result<ListMeta, Problem> {
        if let Some(mirror) = &self.past {
            return Ok(ListMeta::of_past(mirror, self.reader_position().to_string(), kinds, &self.filter.clusters));
        }
        ListMeta::of_clusters(&self.reading, self.reader_position().to_string(), kinds, is_wanted, self.meta_options)
    }

    /// Returns the position from which a client can continue after this page.
    ///
    /// A later page may contain state that is newer than the position of the first page. If the
    /// store then lost that state, a replay from the position could not correct it. The position
    /// therefore also contains the newest sequence that the client has seen, as a position inside a
    /// replay does.
    fn reader_position(&self) -> ReaderPosition {
        let head = self.reading.position().sequence;
        ReaderPosition { position: self.position, seen: (head > self.position.sequence).then_some(head) }
    }
}

/// Returns the text of a page start in a list of the past, with the moment of the list.
fn past_start_text(mirror: &PastMirror, key: &str) -> String {
    let since_1970 = mirror.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{} {} {} {key}", since_1970.as_millis(), mirror.at.sequence, mirror.at.latest)
}

fn parse_past_start(past: &PastReading, text: &str) -> Option<(PastMirror, String)> {
    let parts: Vec<&str> = text.splitn(4, ' ').collect();
    let &[millis, sequence, latest, key] = parts.as_slice() else { return None };
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis.parse().ok()?))?;
    let at = SequenceAt { sequence: Sequence(sequence.parse().ok()?), latest: Sequence(latest.parse().ok()?) };
    Some((past.mirror_at_sequence(time, at), key.to_owned()))
}

/// Checks the `limit` of a request. Returns the default if there is none.
pub(crate) fn checked_limit(limit: Option<u32>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::bad_parameter("limit", format!("{limit} is not between 1 and {LIMIT_MAX}")));
    }
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Returns the maximum number of items of a list. For NDJSON without `limit`, there is none.
pub(crate) fn list_limit(limit: Option<u32>, media_type: MediaType) -> Result<usize, Problem> {
    if limit.is_none() && media_type == MediaType::Lines { Ok(usize::MAX) } else { checked_limit(limit) }
}

/// Returns the token of the page that begins with a key or text. It has at most 512 characters,
/// however long the text is.
pub(crate) fn encode_token(position: Position, fingerprint: &str, start: &str) -> String {
    let start = PAGE_STARTS.shorten(start);
    URL_SAFE_NO_PAD.encode(format!("{TOKEN_VERSION}\n{position}\n{fingerprint}\n{start}"))
}

/// Decodes the position and the next key from a token of this list.
pub(crate) fn decode_token(token: &str, fingerprint: &str, head: Position) -> Result<(Position, String), Problem> {
    let text = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(invalid_token)?;
    let parts: Vec<&str> = text.splitn(4, '\n').collect();
    let &[TOKEN_VERSION, position, found_fingerprint, start] = parts.as_slice() else { return Err(invalid_token()) };
    let position: Position = position.parse().map_err(|_| invalid_token())?;
    if found_fingerprint != fingerprint || position.epoch != head.epoch || position.sequence > head.sequence {
        return Err(invalid_token());
    }
    Ok((position, PAGE_STARTS.expand(start).ok_or_else(invalid_token)?))
}

pub(crate) fn invalid_token() -> Problem {
    Problem::bad_parameter("pageToken", "does not belong to this list (another filter, or meshkeep restarted): start again without it")
}
