//! Lists in the making: item by item, in slices, until a page is full, or as lines until nothing is left ([`super::lines`]).
//!
//! Owns: where a page ends (at its limit, at its bytes, or when it has looked for long enough) and its bytes. Each item is written as it is found,
//! so that a page in the making takes its bytes and no more. Deliberately lacks: where the items come from ([`Rows`]).

use std::ops::ControlFlow;

use serde::Serialize;

use super::listing::{Listing, PAGE_BYTES_MAX};
use super::one_line::append_line;
use crate::admission::Pace;
use crate::api::problem::Problem;
use crate::api::query::fields::Fields;
use crate::api::query::{ListQuery, Parameters};
use crate::api::render::accept::Form;
use crate::dto::meta::ListMeta;
use crate::handle::{NoDecodedRoom, Reading, Slice, Spent};

/// How much of a list as lines is made before it is sent: some 1,200 ipcache entries, about a millisecond of work, so that what passing a turn on takes (30 µs,
/// `admission::scans`) is a thirtieth; and a reader takes no more memory than this and what its connection buffers.
pub(crate) const LINES_BYTES: usize = 512 * 1024;

/// The items of a page, or some lines of a list, encoded.
#[derive(Debug)]
pub(crate) struct Page {
    form: Form,
    bytes: Vec<u8>,
    item: Vec<u8>,
    /// How many items were taken, those of lines that are sent among them.
    count: usize,
    limit: usize,
    /// What of each is wanted, unless all is.
    fields: Option<Fields>,
}

/// What stands behind the items of a page, or in the last line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    meta: &'a ListMeta,
}

/// How far rows came in a slice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There are more; a page that ends here goes on from that text.
    Paused(String),
    /// Nothing is left, or no more was taken, and what comes next begins with that text.
    Ended(Option<String>),
    /// There is no room for what stands at that text now.
    NoRoom(String, NoDecodedRoom),
}

/// Puts items into a page until that takes no more, nothing is left, or the slice is over. Called again, it goes on from there: with what was not
/// taken, if anything was not.
pub(crate) type Rows = Box<dyn FnMut(&mut Page, &mut Slice) -> Step + Send>;

/// Where a list comes from, and its rows.
pub(crate) type Beginning = (ListMeta, Rows);

/// A list in the making.
pub(crate) struct Making {
    listing: Listing,
    meta: ListMeta,
    /// What the page says of that, where it says anything.
    complete: Option<bool>,
    rows: Rows,
    page: Page,
    spent: Spent,
}

impl Page {
    fn new(form: Form, limit: usize, fields: Option<Fields>) -> Self {
        let bytes = if form == Form::Lines { Vec::new() } else { b"{\"items\":[".to_vec() };
        Self { form, bytes, item: Vec::new(), count: 0, limit, fields }
    }

    /// Adds an item; false where the page is full without it.
    pub(crate) fn take(&mut self, item: &impl Serialize) -> bool {
        if self.count >= self.limit {
            return false;
        }
        let written = if self.form == Form::Lines { self.take_line(item) } else { self.take_member(item) };
        written.unwrap_or_else(|error| {
            // no shape of ours has keys that are no texts
            tracing::error!(%error, "an item of a list cannot be written");
            true
        })
    }

    fn take_member(&mut self, item: &impl Serialize) -> Result<bool, serde_json::Error> {
        self.item.clear();
        match &self.fields {
            None => serde_json::to_writer(&mut self.item, item)?,
            Some(fields) => fields.cut(&serde_json::to_vec(item)?, &mut self.item),
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

    fn take_line(&mut self, item: &impl Serialize) -> Result<bool, serde_json::Error> {
        if self.bytes.len() >= LINES_BYTES {
            return Ok(false);
        }
        self.item.clear();
        append_line(&mut self.item, item)?;
        match &self.fields {
            None => self.bytes.extend_from_slice(&self.item),
            Some(fields) => fields.cut(&self.item, &mut self.bytes),
        }
        self.bytes.push(b'\n');
        self.count += 1;
        Ok(true)
    }

    /// The page as a whole, or the last lines.
    fn finish(mut self, tail: &Tail<'_>) -> Result<Vec<u8>, serde_json::Error> {
        if self.form == Form::Lines {
            append_line(&mut self.bytes, tail)?;
            self.bytes.push(b'\n');
        } else {
            self.bytes.push(b']');
            let brace = self.bytes.len();
            serde_json::to_writer(&mut self.bytes, tail)?;
            // its members are the page's
            self.bytes[brace] = b',';
        }
        self.bytes.shrink_to_fit();
        Ok(self.bytes)
    }
}

impl Making {
    /// Begins the list that a request asks for, in a form.
    pub(crate) fn begin<Q, B>(reading: Reading, complete: Option<bool>, query: &Parameters<Q>, begin: B) -> Result<Self, Problem>
    where
        Q: ListQuery,
        B: FnOnce(&Listing, &Q) -> Result<Beginning, Problem>,
    {
        let listing = Listing::new(reading, query)?;
        let (meta, rows) = begin(&listing, &query.values)?;
        let page = Page::new(query.form, listing.limit, query.fields.clone());
        Ok(Self { listing, meta, complete, rows, page, spent: Spent::default() })
    }

    /// Adds lines for one slice, and says how far that came.
    pub(crate) fn add_lines(&mut self, slice: &mut Slice) -> ControlFlow<Result<Option<String>, Problem>> {
        match (self.rows)(&mut self.page, slice) {
            Step::Ended(Some(_)) if self.page.count < self.page.limit => ControlFlow::Continue(()),
            Step::Ended(next) => ControlFlow::Break(Ok(next)),
            // what it waits for may be had once these lines are sent
            Step::NoRoom(..) if !self.page.bytes.is_empty() => ControlFlow::Continue(()),
            Step::NoRoom(at, none) => ControlFlow::Break(Err(Problem::no_room(&at, none))),
            Step::Paused(_) => ControlFlow::Continue(()),
        }
    }

    /// The lines that there are by now.
    pub(crate) fn take_lines(&mut self) -> Vec<u8> {
        let mut lines = std::mem::take(&mut self.page.bytes);
        lines.shrink_to_fit();
        lines
    }

    /// Fills a page for one slice; breaks once it is full or nothing is left.
    pub(crate) fn advance(&mut self, pace: Pace, slice: &mut Slice) -> ControlFlow<Result<Option<String>, Problem>> {
        match (self.rows)(&mut self.page, slice) {
            Step::Ended(next) => ControlFlow::Break(Ok(next)),
            Step::NoRoom(at, none) if self.page.count == 0 => ControlFlow::Break(Err(Problem::no_room(&at, none))),
            Step::NoRoom(at, _) => ControlFlow::Break(Ok(Some(at))),
            Step::Paused(next) => {
                self.spent += slice.spent();
                if pace.page.is_spent(self.spent) { ControlFlow::Break(Ok(Some(next))) } else { ControlFlow::Continue(()) }
            }
        }
    }

    /// All of the page, or the last of the lines.
    pub(crate) fn finish(self, next: Option<String>) -> Result<Vec<u8>, Problem> {
        let (complete, next_page_token, warnings) = (self.complete, self.listing.token(next), self.listing.warnings());
        let tail = Tail { complete, next_page_token, warnings, meta: &self.meta };
        self.page.finish(&tail).map_err(|error| Problem::internal(format!("a list cannot be written: {error}")))
    }
}
