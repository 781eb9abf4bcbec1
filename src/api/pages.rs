//! Pages of lists in the making: item by item, in slices, until they are full.
//!
//! Owns: where a page ends (at its limit, at its bytes, or when it has looked for long enough) and its bytes. Each item is written as it is found,
//! so that a page in the making takes its bytes and no more. Deliberately lacks: where the items come from ([`Rows`]).

use std::ops::ControlFlow;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::dto::meta::ListMeta;
use super::paging::{Listing, checked_limit};
use super::problem::Problem;
use super::query::{ListQuery, Parameters};
use super::scans::{Pace, Scanner};
use super::state::ApiState;
use crate::handle::{NoDecodedRoom, Reading, Scanned, Slice, Spent};
use crate::model::{Kind, Record};

/// How many bytes the items of a page may have (docs/api.md): one item has 1.5 MiB at most as a rule, which is what etcd takes for a value.
pub(crate) const PAGE_BYTES_MAX: usize = 4 << 20;

/// The items of a page, encoded.
#[derive(Debug)]
pub(crate) struct Page {
    bytes: Vec<u8>,
    item: Vec<u8>,
    count: usize,
    limit: usize,
}

/// How far rows came in a slice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There are more; a page that ends here goes on from that text.
    Paused(String),
    /// Nothing is left, or the page is full and the next one begins with that text.
    Ended(Option<String>),
    /// There is no room for what stands at that text now.
    NoRoom(String, NoDecodedRoom),
}

/// Puts items into a page until that is full, nothing is left, or the slice is over. Called again, it goes on from there.
pub(crate) type Rows = Box<dyn FnMut(&mut Page, &mut Slice) -> Step + Send>;

/// Where a list comes from, and its rows.
pub(crate) type Beginning = (ListMeta, Rows);

/// A page in the making.
struct Making {
    listing: Listing,
    meta: ListMeta,
    /// What the page says of that, where it says anything.
    complete: Option<bool>,
    rows: Rows,
    page: Page,
    spent: Spent,
}

impl Page {
    fn new(limit: usize) -> Self {
        Self { bytes: b"{\"items\":[".to_vec(), item: Vec::new(), count: 0, limit }
    }

    /// Adds an item; false where the page is full without it.
    pub(crate) fn take(&mut self, item: &impl Serialize) -> bool {
        if self.count >= self.limit {
            return false;
        }
        self.item.clear();
        if let Err(error) = serde_json::to_writer(&mut self.item, item) {
            // no shape of ours has keys that are no texts
            tracing::error!(%error, "an item of a list cannot be written");
            return true;
        }
        if self.count > 0 && self.bytes.len() + self.item.len() >= PAGE_BYTES_MAX {
            return false;
        }
        if self.count > 0 {
            self.bytes.push(b',');
        }
        self.bytes.append(&mut self.item);
        self.count += 1;
        true
    }

    /// The page as a whole, with what stands behind its items.
    fn finish(
        mut self,
        next: Option<String>,
        complete: Option<bool>,
        warnings: &[String],
        meta: &ListMeta,
    ) -> Result<Vec<u8>, serde_json::Error> {
        self.bytes.push(b']');
        if let Some(complete) = complete {
            self.bytes.extend_from_slice(b",\"complete\":");
            serde_json::to_writer(&mut self.bytes, &complete)?;
        }
        if let Some(next) = next {
            self.bytes.extend_from_slice(b",\"nextPageToken\":");
            serde_json::to_writer(&mut self.bytes, &next)?;
        }
        if !warnings.is_empty() {
            self.bytes.extend_from_slice(b",\"warnings\":");
            serde_json::to_writer(&mut self.bytes, warnings)?;
        }
        self.bytes.extend_from_slice(b",\"meta\":");
        serde_json::to_writer(&mut self.bytes, meta)?;
        self.bytes.push(b'}');
        self.bytes.shrink_to_fit();
        Ok(self.bytes)
    }
}

impl Making {
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

    fn finish(self, next: Option<String>) -> Result<Vec<u8>, Problem> {
        let token = self.listing.token(next);
        self.page
            .finish(token, self.complete, &self.listing.warnings(), &self.meta)
            .map_err(|error| Problem::internal(format!("a list cannot be written: {error}")))
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
    let limit = checked_limit(query.values.parts()?.limit)?;
    let held = scanner.hold().await?;
    let (mut start, mut making) = (Some((reading, query, begin)), None);
    let pace = scanner.pace();
    let made = scanner.run(move |slice| {
        if let Some((reading, query, begin)) = start.take() {
            let begun = Listing::new(reading, &query).and_then(|listing| {
                let (meta, rows) = begin(&listing, &query.values)?;
                Ok(Making { listing, meta, complete, rows, page: Page::new(limit), spent: Spent::default() })
            });
            match begun {
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

/// What a scan says of a page; the next slice begins where it came to.
pub(crate) fn stepped<K: ToString>(scanned: Scanned<K>, start: &mut Option<K>) -> Step {
    match scanned {
        Scanned::All => Step::Ended(None),
        Scanned::Full(key) => Step::Ended(Some(key.to_string())),
        Scanned::NoRoom(key, none) => Step::NoRoom(key.to_string(), none),
        Scanned::Paused(key) => {
            let next = key.to_string();
            *start = Some(key);
            Step::Paused(next)
        }
    }
}
