//! Entry points for handlers: a page, or NDJSON ([`super::lines`]), made by [`super::making`].

use std::ops::ControlFlow;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::lines;
use super::listing::{Listing, checked_limit};
use super::making::Making;
pub(crate) use super::making::{Beginning, Rows, Step};
use super::scanner;
use crate::admission::Scanner;
use crate::api::problem::Problem;
use crate::api::query::{ListQuery, Parameters};
use crate::api::render::accept::Form;
use crate::handle::{Handle, Reading, Scanned};
use crate::model::{Kind, Record};

/// Answers with a page of a list of the newest snapshot. `begin` supplies the list in the first
/// slice.
pub(crate) async fn page<Q, B>(handle: &Handle, scanner: Scanner, query: Parameters<Q>, begin: B) -> Result<Response, Problem>
where
    Q: ListQuery + Send + 'static,
    B: FnOnce(&Listing, &Q) -> Result<Beginning, Problem> + Send + 'static,
{
    checked_limit(query.values.parts()?.limit)?;
    page_of(handle.reading().await?, None, scanner, query, begin).await
}

/// Answers with a page of a list of the given snapshot. `complete` is passed on to the page.
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
    let held = scanner::hold(&scanner).await?;
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

/// Answers with one object that takes long to find or to serialize.
pub(crate) async fn one<T: Serialize>(
    scanner: &Scanner,
    make: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let held = scanner::hold(scanner).await?;
    let made = scanner
        .once(move || serde_json::to_vec(&make()?).map_err(|error| Problem::internal(format!("an answer cannot be written: {error}"))));
    Ok(json(Body::from(held.with(made.await?))))
}

/// Creates a response with a JSON body.
pub(crate) fn json(body: Body) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// Returns rows for the records of one kind, each converted by `item`.
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

/// Converts the result of a scan, and sets `start` to the position for the next call.
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
