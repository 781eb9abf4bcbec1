//! Functions with which handlers answer list requests: with a page, or with NDJSON
//! ([`super::lines`]). [`super::list_builder`] builds both.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::lines;
use super::list_builder::ListBuilder;
pub(crate) use super::list_builder::{ListStart, RowSource, SliceOutcome};
use super::list_request::{ListRequest, ListSnapshot, checked_limit};
use super::scanner;
use crate::admission::Scanner;
use crate::api::problem::Problem;
use crate::api::query::time_parameter::without_history;
use crate::api::query::{ListParameters, ListQuery, Parameters};
use crate::api::render::answer_properties::MediaType;
use crate::handle::{Handle, PastListStep, PastMirror, Reading, ScanEnd, WorkSlice};
use crate::model::{Kind, Record};

/// Answers with a page of a list over the newest snapshot, or with `at=` over its history. `begin`
/// starts the list and is called in the first slice.
pub(crate) async fn respond_with_page<Q, B>(handle: &Handle, scanner: Scanner, query: Parameters<Q>, begin: B) -> Result<Response, Problem>
where
    Q: ListQuery + Send + 'static,
    B: FnOnce(&ListRequest, &Q) -> Result<ListStart, Problem> + Send + 'static,
{
    let ListParameters { limit, at, .. } = query.values.common()?;
    checked_limit(limit)?;
    let snapshot = match at {
        Some(_) => {
            // first, so that no snapshot waits
            let memory = scanner::acquire_past_list_memory(&scanner).await?;
            ListSnapshot::Past(handle.past_reading().await?.ok_or_else(without_history)?, Arc::new(memory))
        }
        None => ListSnapshot::Current(handle.reading().await?),
    };
    respond_with_page_of((snapshot, None), false, scanner, query, begin).await
}

/// Answers with a page of a list over the given snapshot. The page has `complete` as a member if it
/// is set. If `is_short`, the page takes far less than a millisecond, and waking a blocking thread
/// would take longer than the work.
pub(crate) async fn respond_with_page_of<Q, B>(
    (snapshot, complete): (ListSnapshot, Option<bool>),
    is_short: bool,
    scanner: Scanner,
    query: Parameters<Q>,
    begin: B,
) -> Result<Response, Problem>
where
    Q: ListQuery + Send + 'static,
    B: FnOnce(&ListRequest, &Q) -> Result<ListStart, Problem> + Send + 'static,
{
    checked_limit(query.values.common()?.limit)?;
    if query.media_type == MediaType::Lines {
        return lines::respond(scanner, move || ListBuilder::begin(snapshot, complete, &query, begin)).await;
    }
    let permit = scanner::acquire_page_memory(&scanner).await?;
    let (mut start, mut builder) = (Some((snapshot, query, begin)), None);
    let limits = scanner.limits();
    let mut work = move |slice: &mut WorkSlice| {
        if let Some((snapshot, query, begin)) = start.take() {
            match ListBuilder::begin(snapshot, complete, &query, begin) {
                Ok(started) => builder = Some(started),
                Err(problem) => return ControlFlow::Break(Err(problem)),
            }
        }
        let Some(mut page) = builder.take() else { return ControlFlow::Continue(()) };
        match page.advance(limits, slice) {
            ControlFlow::Break(next) => ControlFlow::Break(next.and_then(|next| page.finish_page(next))),
            ControlFlow::Continue(()) => {
                builder = Some(page);
                ControlFlow::Continue(())
            }
        }
    };
    let first = if is_short { scanner.run_inline(&mut work).await } else { ControlFlow::Continue(()) };
    let answer = match first {
        ControlFlow::Break(answer) => answer,
        ControlFlow::Continue(()) => scanner.run(work).await,
    };
    Ok(json_response(Body::from(permit.attach_to(answer?))))
}

/// Answers with one object that may take long to find or to serialize. If `is_short`, it takes less
/// than a millisecond, and waking a blocking thread would take longer than the work.
pub(crate) async fn respond_with_object<T: Serialize>(
    scanner: &Scanner,
    is_short: bool,
    make: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let permit = scanner::acquire_page_memory(scanner).await?;
    let write = move || serde_json::to_vec(&make()?).map_err(|error| Problem::internal(format!("an answer cannot be written: {error}")));
    let answer = if is_short { scanner.run_inline(|_| write()).await } else { scanner.run_once(write).await };
    Ok(json_response(Body::from(permit.attach_to(answer?))))
}

/// Answers with the JSON that `work` returns. It is called once per slice until it breaks.
pub(crate) async fn respond_with_slices<W>(scanner: &Scanner, work: W) -> Result<Response, Problem>
where
    W: FnMut(&mut WorkSlice) -> ControlFlow<Result<Vec<u8>, Problem>> + Send + 'static,
{
    let permit = scanner::acquire_page_memory(scanner).await?;
    let answer = scanner.run(work).await?;
    Ok(json_response(Body::from(permit.attach_to(answer))))
}

/// Creates a response with a JSON body.
pub(crate) fn json_response(body: Body) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// Returns rows for the records of one kind, each converted by `item`.
pub(crate) fn record_rows<T: Serialize>(
    listing: &ListRequest,
    kind: Kind,
    item: impl Fn(&Record, &Reading) -> Option<T> + Send + 'static,
) -> Result<RowSource, Problem> {
    if let Some(mirror) = &listing.past {
        return past_rows(listing, mirror, kind, item);
    }
    let (reading, mut start) = (listing.reading.clone(), listing.start_key()?);
    let plan = reading.plan_list(kind, &listing.filter);
    Ok(Box::new(move |page, slice| {
        let scanned = reading.scan(&plan, start.as_ref(), slice, |record| item(record, &reading).is_none_or(|item| page.push(&item)));
        into_outcome(scanned, &mut start)
    }))
}

/// Returns rows for the records of one kind at an earlier time.
fn past_rows<T: Serialize>(
    listing: &ListRequest,
    mirror: &PastMirror,
    kind: Kind,
    item: impl Fn(&Record, &Reading) -> Option<T> + Send + 'static,
) -> Result<RowSource, Problem> {
    let (reading, start) = (listing.reading.clone(), listing.start_key()?);
    let mut scan = mirror.clone().scan_list(kind, &listing.filter, start);
    Ok(Box::new(move |page, slice| {
        let step = scan.advance(slice, |record| item(record, &reading).is_none_or(|item| page.push(&item)));
        let PastListStep::Listed(end) = step else { return SliceOutcome::ReadingHistory };
        page.set_lost_periods(scan.lost_periods());
        into_outcome(end, &mut None)
    }))
}

/// Converts the result of a scan, and sets `start` to the position for the next call.
pub(crate) fn into_outcome<K: ToString>(scanned: ScanEnd<K>, start: &mut Option<K>) -> SliceOutcome {
    let mut continue_at = |key: K| {
        let text = key.to_string();
        *start = Some(key);
        text
    };
    match scanned {
        ScanEnd::Complete => SliceOutcome::Ended(None),
        ScanEnd::PageFull(key) => SliceOutcome::Ended(Some(continue_at(key))),
        ScanEnd::OverBudget(key, error) => SliceOutcome::NoMemory(continue_at(key), error),
        ScanEnd::Paused(key) => SliceOutcome::Paused(continue_at(key)),
    }
}
