//! Lists in progress. A page gets items, slice by slice, until it is full. An NDJSON list
//! ([`super::lines`]) gets items until none is left.
//!
//! A page ends at its limit, at its maximum size in bytes, or when its scan has used up its time.
//! Each item is serialized as soon as it is found, so a page needs only the memory of its bytes.
//! [`RowSource`] supplies the items.

use std::ops::ControlFlow;

use serde::Serialize;

use super::lines::LineBuilder;
use super::list_request::{ListRequest, ListSnapshot, PAGE_BYTES_MAX};
use super::one_line::append_line;
use crate::admission::ScanLimits;
use crate::api::problem::Problem;
use crate::api::query::fields::Fields;
use crate::api::query::{ListQuery, Parameters};
use crate::api::render::answer_properties::MediaType;
use crate::dto::meta::ListMeta;
use crate::handle::{DecodedBudgetError, HistoryGap, ScanUsage, WorkSlice};

/// Size in bytes at which built NDJSON lines are sent: about 1,200 ipcache entries, a millisecond
/// of work.
///
/// Starting the next slice takes 30 µs (`admission/executor.rs`), a thirtieth of that. A client
/// needs no more memory than this and the buffers of its connection.
pub(crate) const LINES_BYTES: usize = 512 * 1024;

/// Serialized items of a page, or lines of a list.
#[derive(Debug)]
pub(crate) struct PageBuffer {
    media_type: MediaType,
    bytes: Vec<u8>,
    item: Vec<u8>,
    /// Number of items, including lines that were sent already.
    count: usize,
    limit: usize,
    /// Selected members of each item; `None` for all.
    fields: Option<Fields>,
    /// Periods since the time of a list of the past whose changes are lost.
    lost_periods: Vec<HistoryGap>,
}

/// Members after the items of a page, or the last line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PageTail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    meta: &'a ListMeta,
}

/// Result of one slice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SliceOutcome {
    /// The slice is over, and there may be more items. If the page ends here, the next page begins
    /// with this text.
    Paused(String),
    /// No item is left (`None`), or the page is full and the next one begins with this text.
    Ended(Option<String>),
    /// The history is being read for the first time, and nothing was added yet. A page cannot end
    /// here.
    ReadingHistory,
    /// No memory is currently free to decode the next item, whose page start is this text.
    NoMemory(String, DecodedBudgetError),
}

/// Function that adds items to a page until the page is full, no item is left, or the slice is
/// over. The next call resumes with the first item that was not added.
pub(crate) type RowSource = Box<dyn FnMut(&mut PageBuffer, &mut WorkSlice) -> SliceOutcome + Send>;

/// `meta` of a list, and its rows.
pub(crate) type ListStart = (ListMeta, RowSource);

/// A list in progress.
pub(crate) struct ListBuilder {
    listing: ListRequest,
    meta: ListMeta,
    /// Value of `complete` in the page, if it has this member.
    complete: Option<bool>,
    rows: RowSource,
    page: PageBuffer,
    spent: ScanUsage,
}

impl PageBuffer {
    pub(crate) fn new(media_type: MediaType, limit: usize, fields: Option<Fields>) -> Self {
        let bytes = if media_type == MediaType::Lines { Vec::new() } else { b"{\"items\":[".to_vec() };
        Self { media_type, bytes, item: Vec::new(), count: 0, limit, fields, lost_periods: Vec::new() }
    }

    /// Sets the periods since the time of a list of the past whose changes are lost.
    pub(crate) fn set_lost_periods(&mut self, lost_periods: &[HistoryGap]) {
        lost_periods.clone_into(&mut self.lost_periods);
    }

    /// Adds an item. Returns false if the page is full without it.
    pub(crate) fn push(&mut self, item: &impl Serialize) -> bool {
        if self.count >= self.limit {
            return false;
        }
        let written = if self.media_type == MediaType::Lines { self.push_line(item) } else { self.push_member(item) };
        written.unwrap_or_else(|error| {
            // cannot happen: no item has a map whose keys are not strings
            tracing::error!(%error, "an item of a list cannot be written");
            true
        })
    }

    fn push_member(&mut self, item: &impl Serialize) -> Result<bool, serde_json::Error> {
        self.item.clear();
        match &self.fields {
            None => serde_json::to_writer(&mut self.item, item)?,
            Some(fields) => fields.select(&serde_json::to_vec(item)?, &mut self.item),
        }
        if self.count > 0 && self.bytes.len() + self.item.len() >= PAGE_BYTES_MAX {
            return Ok(false);
        }
        if self.count > 0 {
            self.bytes.push(b',');
        }
        self.bytes.append(&mut self.item);
        self.count += 1;
        Ok(true)
    }

    fn push_line(&mut self, item: &impl Serialize) -> Result<bool, serde_json::Error> {
        if self.bytes.len() >= LINES_BYTES {
            return Ok(false);
        }
        self.item.clear();
        append_line(&mut self.item, item)?;
        match &self.fields {
            None => self.bytes.extend_from_slice(&self.item),
            Some(fields) => fields.select(&self.item, &mut self.bytes),
        }
        self.bytes.push(b'\n');
        self.count += 1;
        Ok(true)
    }

    /// Returns the number of items.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Removes the lines built so far and returns them.
    pub(crate) fn take_lines(&mut self) -> Vec<u8> {
        let mut lines = std::mem::take(&mut self.bytes);
        lines.shrink_to_fit();
        lines
    }

    /// Returns whether no lines have been built since the last call of [`Self::take_lines`].
    pub(crate) const fn has_no_lines(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the whole page, or the last lines. `tail` is an object with at least one member.
    pub(crate) fn finish(mut self, tail: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
        if self.media_type == MediaType::Lines {
            append_line(&mut self.bytes, tail)?;
            self.bytes.push(b'\n');
        } else {
            self.bytes.push(b']');
            let brace = self.bytes.len();
            serde_json::to_writer(&mut self.bytes, tail)?;
            // the members of the tail become members of the page
            self.bytes[brace] = b',';
        }
        self.bytes.shrink_to_fit();
        Ok(self.bytes)
    }
}

impl ListBuilder {
    /// Starts the list of a request.
    pub(crate) fn begin<Q, B>(snapshot: ListSnapshot, complete: Option<bool>, query: &Parameters<Q>, begin: B) -> Result<Self, Problem>
    where
        Q: ListQuery,
        B: FnOnce(&ListRequest, &Q) -> Result<ListStart, Problem>,
    {
        let listing = ListRequest::new(snapshot, query)?;
        let (meta, rows) = begin(&listing, &query.values)?;
        let page = PageBuffer::new(query.media_type, listing.limit, query.fields.clone());
        Ok(Self { listing, meta, complete, rows, page, spent: ScanUsage::default() })
    }

    /// Fills a page for one slice. Breaks once it is full or no item is left.
    pub(crate) fn advance(&mut self, limits: ScanLimits, slice: &mut WorkSlice) -> ControlFlow<Result<Option<String>, Problem>> {
        match (self.rows)(&mut self.page, slice) {
            SliceOutcome::Ended(next) => ControlFlow::Break(Ok(next)),
            SliceOutcome::ReadingHistory => {
                self.spent += slice.usage();
                if limits.page.is_reached(self.spent) { ControlFlow::Break(Err(too_much_history())) } else { ControlFlow::Continue(()) }
            }
            SliceOutcome::NoMemory(start, error) if self.page.count == 0 => ControlFlow::Break(Err(Problem::no_memory(&start, error))),
            SliceOutcome::NoMemory(start, _) => ControlFlow::Break(Ok(Some(start))),
            SliceOutcome::Paused(next) => {
                self.spent += slice.usage();
                if limits.page.is_reached(self.spent) { ControlFlow::Break(Ok(Some(next))) } else { ControlFlow::Continue(()) }
            }
        }
    }

    /// Returns the whole page, or the last lines.
    pub(crate) fn finish_page(mut self, next: Option<String>) -> Result<Vec<u8>, Problem> {
        self.meta.add_lost_periods(&self.page.lost_periods);
        let (complete, next_page_token, warnings) = (self.complete, self.listing.token(next), self.listing.warnings());
        let tail = PageTail { complete, next_page_token, warnings, meta: &self.meta };
        self.page.finish(&tail).map_err(|error| Problem::internal(format!("a list cannot be written: {error}")))
    }
}

impl LineBuilder for ListBuilder {
    type Start = String;

    fn add_lines(&mut self, slice: &mut WorkSlice) -> ControlFlow<Result<Option<String>, Problem>> {
        match (self.rows)(&mut self.page, slice) {
            // the buffer for lines is full: these lines are sent, and the next slice continues
            SliceOutcome::Ended(Some(_)) if self.page.count < self.page.limit => ControlFlow::Continue(()),
            SliceOutcome::Ended(next) => ControlFlow::Break(Ok(next)),
            // the memory may be free once these lines are sent
            SliceOutcome::NoMemory(..) if !self.page.has_no_lines() => ControlFlow::Continue(()),
            SliceOutcome::NoMemory(start, error) => ControlFlow::Break(Err(Problem::no_memory(&start, error))),
            SliceOutcome::Paused(_) | SliceOutcome::ReadingHistory => ControlFlow::Continue(()),
        }
    }

    fn take_lines(&mut self) -> Vec<u8> {
        self.page.take_lines()
    }

    fn finish(self, next: Option<String>) -> Result<Vec<u8>, Problem> {
        self.finish_page(next)
    }
}

/// Returns the problem for a list of the past that takes too long to read.
fn too_much_history() -> Problem {
    let advice = "choose a later time, or give cluster= and name=, for objects with a namespace also namespace=; for ipcache give identity=, or namespace= and pod=";
    Problem::bad_parameter("at", format!("too much has changed since then for this list: {advice}"))
}
