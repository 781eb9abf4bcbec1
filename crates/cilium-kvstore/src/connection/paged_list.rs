//! Lists in pages, all as of one revision. Each page is requested, or all but the first come as a
//! stream if the server supports it (etcd 3.7).

use etcd_client::proto::PbRangeResponse;
use etcd_client::{GetOptions, GetStreamResponse};

use super::list_checker::ListChecker;
use crate::error::printable;
use crate::{Connection, KeyValue, KvstoreError, Revision, prefix_end};

/// Page size from which halving starts if no limit was set: 16 of Cilium's pages.
const PAGE_LIMIT_WHERE_UNLIMITED: i64 = 4096;

/// Maximum number of changed keys in one reply: 16 of Cilium's pages. Above that, a full list costs
/// little more.
const CHANGED_KEYS_MAX: i64 = 4096;

/// List in progress. Its pages have ascending keys, and all have the revision of the first page.
pub struct PagedList {
    connection: Connection,
    start: Vec<u8>,
    end: Vec<u8>,
    /// Current number of keys per page; smaller than `requested` while values are large. 0 means
    /// unlimited.
    limit: i64,
    /// Requested number of keys per page.
    requested: i64,
    /// Whether values are left out.
    keys_only: bool,
    /// Whether the connected member answers alone. It may be behind the others.
    serializable: bool,
    /// Revision to read; `None` for the newest.
    at: Option<Revision>,
    /// Set by the first page, unless the list has an older revision.
    checker: Option<ListChecker>,
    /// Stream with the remaining keys, if the server supports it.
    stream: Option<GetStreamResponse>,
    /// Whether the remaining keys must be requested page by page.
    in_pages: bool,
    /// Whether the first page has been requested.
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
    /// Returns the keys that were put below a prefix after a revision; `None` if they are too many
    /// for one reply. Needs no history, so it works even after a compaction. etcd reads the whole
    /// prefix for it, so it is paced like a list.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn changes_since(&self, prefix: &[u8], after: Revision) -> Result<Option<ChangedKeys>, KvstoreError> {
        self.pace().await;
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
        PagedList::of_keys(self.clone(), prefix, changed)
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
            requested: limit,
            keys_only: false,
            serializable: false,
            at: None,
            checker: None,
            stream: None,
            in_pages: false,
            started: false,
            done: false,
        }
    }

    /// Creates a list of keys without values, as of a revision that is known to have this many
    /// keys.
    pub(crate) fn of_keys(connection: Connection, prefix: &[u8], changed: &ChangedKeys) -> Self {
        let list = Self::new(connection, prefix);
        let checker = ListChecker::new(list.start.clone(), list.end.clone(), changed.revision, changed.total_count);
        Self { keys_only: true, checker: Some(checker), ..list }
    }

    /// Sets the number of keys per page; 0 means all.
    pub(crate) fn with_page_limit(self, limit: i64) -> Self {
        Self { limit, requested: limit, ..self }
    }

    /// Sets whether the connected member may answer alone.
    pub(crate) fn serializable(self, serializable: bool) -> Self {
        // a stream does not support this option
        Self { serializable, in_pages: serializable || self.in_pages, ..self }
    }

    /// Leaves out values, and reads the keys as of a revision.
    pub(crate) fn keys_at(self, at: Revision) -> Self {
        Self { keys_only: true, at: Some(at), ..self }
    }

    /// Returns the next page, or `None` after the last one. The first page comes even if it is
    /// empty. A page that is too large for one message is requested again with half as many keys.
    ///
    /// # Errors
    /// [`KvstoreError`]; `Compacted` if the list took longer than etcd keeps history; `TooLarge` if
    /// a single value is over the limit. The call can be repeated for the same page.
    pub async fn next_page(&mut self) -> Result<Option<Page>, KvstoreError> {
        if self.done {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.started, true) {
            self.connection.pace().await;
        }
        if let Some(page) = self.next_of_stream().await? {
            return Ok(Some(page));
        }
        loop {
            let first = self.at.unwrap_or_default().0;
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
                Err(KvstoreError::TooLarge { .. }) if self.limit == 0 => self.limit = PAGE_LIMIT_WHERE_UNLIMITED,
                Err(KvstoreError::TooLarge { .. }) => self.limit = (self.limit / 2).max(1),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the next part of the stream, once the list is known to have more than one page;
    /// `None` if the part must be requested as a page.
    async fn next_of_stream(&mut self) -> Result<Option<Page>, KvstoreError> {
        if self.in_pages || self.checker.is_none() || !self.connection.has_range_stream() {
            return Ok(None);
        }
        let is_new = self.stream.is_none();
        match self.next_part().await {
            Ok(page) => return Ok(Some(page)),
            Err(error) if is_new && error.is_about_a_missing_call() => self.connection.lacks_range_stream(),
            // A part may be larger than a page. For a new stream, the page request reports the
            // error or renews the token.
            Err(error) if matches!(error, KvstoreError::TooLarge { .. }) || (is_new && error.is_a_failed_call()) => {
                self.in_pages = true;
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
        let no_list = || malformed("a part without a page before it");
        let checker = self.checker.as_mut().ok_or_else(no_list)?;
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
        self.grow(&reply);
        let revision = self.at.unwrap_or(newest);
        let checker = self.checker.get_or_insert_with(|| ListChecker::new(self.start.clone(), self.end.clone(), revision, count));
        checker.accept(reply.kvs, self.done)
    }

    /// Doubles a halved limit again if twice the last page would fill at most half a message.
    fn grow(&mut self, reply: &PbRangeResponse) {
        let requested = self.requested;
        let halved = self.limit != requested;
        let bytes: usize = reply.kvs.iter().map(|key_value| key_value.key.len() + key_value.value.len()).sum();
        if halved && bytes.saturating_mul(4) <= self.connection.options().message_bytes_max {
            let doubled = self.limit.saturating_mul(2);
            self.limit = if requested == 0 { doubled.min(PAGE_LIMIT_WHERE_UNLIMITED) } else { doubled.min(requested) };
        }
    }

    fn too_large(&self, bytes_max: usize) -> KvstoreError {
        let what = format!(
            "reading one key from {} to {}",
            printable(self.checker.as_ref().map_or(&self.start, ListChecker::next)),
            printable(&self.end)
        );
        KvstoreError::TooLarge { what, bytes_max }
    }
}

fn malformed(reason: &str) -> KvstoreError {
    KvstoreError::Malformed { reason: format!("{reason} of a list") }
}
