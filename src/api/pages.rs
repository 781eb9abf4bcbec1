//! Lists in the making: item by item, in slices, until a page is full, or as lines until nothing is left ([`super::lines`]).
//!
//! Owns: where a page ends (at its limit, at its bytes, or when it has looked for long enough) and its bytes. Each item is written as it is found,
//! so that a page in the making takes its bytes and no more. Deliberately lacks: where the items come from ([`Rows`]).

use std::ops::ControlFlow;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::accept::Form;
use super::dto::meta::ListMeta;
use super::fields::Fields;
use super::lines;
use super::one_line::append_line;
use super::paging::{Listing, checked_limit};
use super::problem::Problem;
use super::query::{ListQuery, Parameters};
use super::scans::{Pace, Scanner};
use super::state::ApiState;
use crate::handle::{NoDecodedRoom, Reading, Scanned, Slice, Spent};
use crate::model::{Kind, Record};

/// How many bytes the items of a page may have (docs/api.md): one item has 1.5 MiB at most as a rule, which is what etcd takes for a value.
pub(crate) const PAGE_BYTES_MAX: usize = 4 << 20;

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
pub(super) struct Making {
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
        if self.bytes.len() >= lines::CHUNK_BYTES {
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
    fn begin<Q, B>(reading: Reading, complete: Option<bool>, query: &Parameters<Q>, begin: B) -> Result<Self, Problem>
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
    pub(super) fn add_lines(&mut self, slice: &mut Slice) -> ControlFlow<Result<Option<String>, Problem>> {
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
    pub(super) fn take_lines(&mut self) -> Vec<u8> {
        let mut lines = std::mem::take(&mut self.page.bytes);
        lines.shrink_to_fit();
        lines
    }

    fn advance(&mut self, pace: Pace, slice: &mut Slice) -> ControlFlow<Result<Option<String>, Problem>> {
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
    pub(super) fn finish(self, next: Option<String>) -> Result<Vec<u8>, Problem> {
        let (complete, next_page_token, warnings) = (self.complete, self.listing.token(next), self.listing.warnings());
        let tail = Tail { complete, next_page_token, warnings, meta: &self.meta };
        self.page.finish(&tail).map_err(|error| Problem::internal(format!("a list cannot be written: {error}")))
    }
}

/// A page of the list that a request asks for; `begin` says where it comes from, in the first slice.
pub(crate) async fn page<Q, B>(state: &ApiState, scanner: Scanner, query: Parameters<Q>, begin: B) -> Result<Response, Problem>
where
    Q: ListQuery + Send + 'static,
    B: FnOnce(&Listing, &Q) -> Result<Beginning, Problem> + Send + 'static,
{
    checked_limit(query.values.parts()?.limit)?;
    page_of(state.handle.reading().await?, None, scanner, query, begin).await
}

/// A page of a list, of a snapshot that is at hand; it says whether that is `complete`, if anything is given.
pub(crate) async fn page_of<Q, B>(
    reading: Reading,
    complete: Option<bool>,
    scanner: Scanner,
    query: Parameters<Q>,
    begin: B,
) -> Result<Response, Problem>
where
    Q: ListQuery + Send + 'static,
    B: FnOnce(&Listing, &Q) -> Result<Beginning, Problem> + Send + 'static,
{
    checked_limit(query.values.parts()?.limit)?;
    if query.form == Form::Lines {
        return lines::answer(scanner, move || Making::begin(reading, complete, &query, begin)).await;
    }
    let held = scanner.hold().await?;
    let (mut start, mut making) = (Some((reading, query, begin)), None);
    let pace = scanner.pace();
    let made = scanner.run(move |slice| {
        if let Some((reading, query, begin)) = start.take() {
            match Making::begin(reading, complete, &query, begin) {
                Ok(begun) => making = Some(begun),
                Err(problem) => return ControlFlow::Break(Err(problem)),
            }
        }
        let Some(mut page) = making.take() else { return ControlFlow::Continue(()) };
        match page.advance(pace, slice) {
            ControlFlow::Break(next) => ControlFlow::Break(next.and_then(|next| page.finish(next))),
            ControlFlow::Continue(()) => {
                making = Some(page);
                ControlFlow::Continue(())
            }
        }
    });
    Ok(json(Body::from(held.with(made.await?))))
}

/// One thing that takes long to find or to write.
pub(crate) async fn one<T: Serialize>(
    scanner: &Scanner,
    make: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let held = scanner.hold().await?;
    let made = scanner
        .once(move || serde_json::to_vec(&make()?).map_err(|error| Problem::internal(format!("an answer cannot be written: {error}"))));
    Ok(json(Body::from(held.with(made.await?))))
}

/// A body that is JSON.
pub(crate) fn json(body: Body) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// Rows that are records of one kind, each shown by `item`.
pub(crate) fn records<T: Serialize>(
    listing: &Listing,
    kind: Kind,
    item: impl Fn(&Record) -> Option<T> + Send + 'static,
) -> Result<Rows, Problem> {
    let (reading, mut start) = (listing.reading.clone(), listing.start_key()?);
    let seek = reading.seek(kind, &listing.filter);
    Ok(Box::new(move |page, slice| {
        let scanned = reading.scan(&seek, start.as_ref(), slice, |record| item(record).is_none_or(|item| page.take(&item)));
        stepped(scanned, &mut start)
    }))
}

/// What a scan says of a page; the next call begins where it came to.
pub(crate) fn stepped<K: ToString>(scanned: Scanned<K>, start: &mut Option<K>) -> Step {
    let mut go_on = |key: K| {
        let text = key.to_string();
        *start = Some(key);
        text
    };
    match scanned {
        Scanned::All => Step::Ended(None),
        Scanned::Full(key) => Step::Ended(Some(go_on(key))),
        Scanned::NoRoom(key, none) => Step::NoRoom(go_on(key), none),
        Scanned::Paused(key) => Step::Paused(go_on(key)),
    }
}
