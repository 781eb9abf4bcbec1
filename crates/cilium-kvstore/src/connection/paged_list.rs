//! Lists in pages, all as of one revision. The first page is a request. The other pages are
//! requests too, or parts of a stream if the server supports it (etcd 3.7).

use etcd_client::proto::PbRangeResponse;
use etcd_client::{GetOptions, GetStreamResponse};

use super::list_checker::ListChecker;
use crate::error::printable;
use crate::{Connection, KeyValue, KvstoreError, Revision, prefix_end};

/// Page size from which halving starts if there is no page limit: 16 of Cilium's pages.
const FIRST_HALVED_PAGE_LIMIT: i64 = 4096;

/// Maximum number of changed keys in one reply: 16 of Cilium's pages. For more changed keys, a full
/// list costs little more.
const CHANGED_KEYS_MAX: i64 = 4096;

/// List in progress. Its pages have ascending keys, and all have the revision of the first page.
pub struct PagedList {
    connection: Connection,
    start: Vec<u8>,
    end: Vec<u8>,
    /// Current number of keys per page; smaller than `requested_limit` while values are large. 0
    /// means unlimited.
    limit: i64,
    requested_limit: i64,
    keys_only: bool,
    /// True if the connected member answers without a quorum. Its state may be behind the other
    /// members'.
    serializable: bool,
    /// Revision to read; `None` for the newest.
    at_revision: Option<Revision>,
    /// Created from the first page. A list of keys with a known count has it from the start.
    checker: Option<ListChecker>,
    /// Stream with the remaining keys, if the server supports it.
    stream: Option<GetStreamResponse>,
    /// True if the remaining keys must be requested page by page.
    pages_only: bool,
    /// True if the first page has been requested.
    started: bool,
    done: bool,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Revision of the whole list. A watch continues after it.
    pub revision: Revision,
    /// Keys and values, ascending by key.
    pub key_values: Vec<KeyValue>,
    /// Number of keys in the whole list.
    pub total_count: u64,
}

/// Differential list: the keys that were put below a prefix after a revision, and the number of all
/// keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedKeys {
    /// Revision of the reply.
    pub revision: Revision,
    /// Keys that were put, with their values, ascending by key.
    pub puts: Vec<KeyValue>,
    /// Number of keys with the prefix.
    pub total_count: u64,
}

impl Connection {
    /// Returns the keys that were put below a prefix after a revision; `None` if one reply cannot
    /// contain them all. Needs no history, so it works even after a compaction. etcd scans the
    /// whole prefix for it, so the rate limit of lists applies.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn changes_since(&self, prefix: &[u8], after: Revision) -> Result<Option<ChangedKeys>, KvstoreError> {
        self.wait_for_rate_limit().await;
        let options = GetOptions::new().with_range(prefix_end(prefix)).with_min_mod_revision(after.next().0).with_limit(CHANGED_KEYS_MAX);
        let (reply, revision) = match self.range(prefix, options).await {
            Ok(reply) => reply,
            Err(KvstoreError::TooLarge { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let total_count = u64::try_from(reply.count).map_err(|_| malformed("a negative count"))?;
        let puts = reply.kvs.into_iter().map(KeyValue::from).collect();
        Ok((!reply.more).then_some(ChangedKeys { revision, puts, total_count }))
    }

    /// Lists the keys below a prefix, without values, as of the revision of a differential list.
    #[must_use]
    pub fn list_keys(&self, prefix: &[u8], changed: &ChangedKeys) -> PagedList {
        PagedList::new_keys_only(self.clone(), prefix, changed)
    }
}

impl PagedList {
    pub(crate) fn new(connection: Connection, prefix: &[u8]) -> Self {
        // etcd refuses an empty key; the lowest key is \0
        let start = if prefix.is_empty() { vec![0] } else { prefix.to_vec() };
        let limit = connection.options().page_limit.max(0);
        Self {
            connection,
            start,
            end: prefix_end(prefix),
            limit,
            requested_limit: limit,
            keys_only: false,
            serializable: false,
            at_revision: None,
            checker: None,
            stream: None,
            pages_only: false,
            started: false,
            done: false,
        }
    }

    /// Creates a list of keys without values, as of a revision whose number of keys is known.
    pub(crate) fn new_keys_only(connection: Connection, prefix: &[u8], changed: &ChangedKeys) -> Self {
        let list = Self::new(connection, prefix);
        let checker = ListChecker::new(list.start.clone(), list.end.clone(), changed.revision, changed.total_count);
        Self { keys_only: true, checker: Some(checker), ..list }
    }

    /// Sets the number of keys per page; 0 means all.
    pub(crate) fn with_page_limit(self, limit: i64) -> Self {
        Self { limit, requested_limit: limit, ..self }
    }

    /// Sets whether the connected member may answer without a quorum.
    pub(crate) fn serializable(self, serializable: bool) -> Self {
        // a stream does not support this option
        Self { serializable, pages_only: serializable || self.pages_only, ..self }
    }

    /// Leaves out values, and reads the keys as of a revision.
    pub(crate) fn keys_at(self, at_revision: Revision) -> Self {
        Self { keys_only: true, at_revision: Some(at_revision), ..self }
    }

    /// Returns the next page, or `None` after the last one. The first page is returned even if it
    /// is empty. A page that is too large for one message is requested again with half as many
    /// keys.
    ///
    /// # Errors
    /// [`KvstoreError`]; `Compacted` if etcd compacted the list's revision before the list was
    /// complete; `TooLarge` if a single value is over the limit. After an error, the same page can
    /// be requested again.
    pub async fn next_page(&mut self) -> Result<Option<Page>, KvstoreError> {
        if self.done {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.started, true) {
            self.connection.wait_for_rate_limit().await;
        }
        if let Some(page) = self.next_streamed_page().await? {
            return Ok(Some(page));
        }
        loop {
            let first = self.at_revision.unwrap_or_default().0;
            let (start, revision) = self.checker.as_ref().map_or((&*self.start, first), |checker| (checker.next(), checker.revision().0));
            let mut options = GetOptions::new().with_range(self.end.clone()).with_limit(self.limit).with_revision(revision);
            if self.keys_only {
                options = options.with_keys_only();
            }
            if self.serializable {
                options = options.with_serializable();
            }
            match self.connection.range(start, options).await {
                Ok((reply, newest)) => return self.accept(reply, newest).map(Some),
                Err(KvstoreError::TooLarge { bytes_max, .. }) if self.limit == 1 => return Err(self.too_large(bytes_max)),
                Err(KvstoreError::TooLarge { .. }) if self.limit == 0 => self.limit = FIRST_HALVED_PAGE_LIMIT,
                Err(KvstoreError::TooLarge { .. }) => self.limit = (self.limit / 2).max(1),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the next part of the stream as a page. Returns `None` if the page must be requested:
    /// because it is the first page, or because the list cannot use a stream.
    async fn next_streamed_page(&mut self) -> Result<Option<Page>, KvstoreError> {
        if self.pages_only || self.checker.is_none() || !self.connection.has_range_stream() {
            return Ok(None);
        }
        let is_new = self.stream.is_none();
        match self.next_part().await {
            Ok(page) => return Ok(Some(page)),
            Err(error) if is_new && error.is_unimplemented() => self.connection.disable_range_stream(),
            // A part may be larger than a page. If a new stream fails, the page request that
            // follows reports the error or renews the token.
            Err(error) if matches!(error, KvstoreError::TooLarge { .. }) || (is_new && error.is_failed_call()) => {
                self.pages_only = true;
            }
            Err(error) => {
                self.stream = None;
                return Err(error);
            }
        }
        self.stream = None;
        Ok(None)
    }

    async fn next_part(&mut self) -> Result<Page, KvstoreError> {
        let no_first_page = || malformed("a part before the first page");
        let checker = self.checker.as_mut().ok_or_else(no_first_page)?;
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let mut options = GetOptions::new().with_range(self.end.clone()).with_revision(checker.revision().0);
                if self.keys_only {
                    options = options.with_keys_only();
                }
                self.stream.insert(self.connection.range_stream(checker.next(), options).await?)
            }
        };
        let part = self.connection.next_part(stream, checker.next(), checker.revision()).await?;
        self.done = part.header.is_some();
        checker.accept(part.kvs, self.done)
    }

    fn accept(&mut self, reply: PbRangeResponse, newest: Revision) -> Result<Page, KvstoreError> {
        let count = u64::try_from(reply.count).map_err(|_| malformed("a negative count"))?;
        self.done = !reply.more;
        self.restore_limit(&reply);
        let revision = self.at_revision.unwrap_or(newest);
        let checker = self.checker.get_or_insert_with(|| ListChecker::new(self.start.clone(), self.end.clone(), revision, count));
        checker.accept(reply.kvs, self.done)
    }

    /// Doubles a halved page limit if a page of twice the size would fill at most half a message.
    fn restore_limit(&mut self, reply: &PbRangeResponse) {
        let requested_limit = self.requested_limit;
        let halved = self.limit != requested_limit;
        let bytes: usize = reply.kvs.iter().map(|key_value| key_value.key.len() + key_value.value.len()).sum();
        if halved && bytes.saturating_mul(4) <= self.connection.options().message_bytes_max {
            let doubled = self.limit.saturating_mul(2);
            self.limit = if requested_limit == 0 { doubled.min(FIRST_HALVED_PAGE_LIMIT) } else { doubled.min(requested_limit) };
        }
    }

    fn too_large(&self, bytes_max: usize) -> KvstoreError {
        let operation = format!(
            "reading one key from {} to {}",
            printable(self.checker.as_ref().map_or(&self.start, ListChecker::next)),
            printable(&self.end)
        );
        KvstoreError::TooLarge { operation, bytes_max }
    }
}

fn malformed(reason: &str) -> KvstoreError {
    KvstoreError::Malformed { reason: format!("{reason} of a list") }
}
