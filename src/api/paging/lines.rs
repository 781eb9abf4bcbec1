//! A list as NDJSON: all items without pages, one JSON object per line, and `meta` last.
//!
//! The lines come from one snapshot. They are built in parts of a few hundred KiB. Each part is
//! built in a slice between the slices of other requests ([`crate::admission`]), and only when the
//! connection asks for more bytes. A slow client slows only its own list, and a disconnect ends the
//! list after the current slice. If the list cannot be completed, the connection is aborted, so
//! that the client notices; the last line is then missing too. A [`LineBuilder`] builds the lines.

use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::scanner;
use crate::admission::Scanner;
use crate::api::problem::{Problem, ProblemCode};
use crate::api::render::answer_properties::MediaType;
use crate::handle::WorkSlice;

/// Maximum time that an answer may take, because its snapshot retains everything that has changed
/// since. A million ipcache entries (430 MB) take this long at 6 Mbit/s.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(600);

/// Builder of the lines of one list.
pub(crate) trait LineBuilder: Send + 'static {
    /// Start of the next page, if `limit=` ends the list.
    type Start: Send + 'static;

    /// Adds lines for one slice. Breaks when no more lines follow.
    fn add_lines(&mut self, slice: &mut WorkSlice) -> ControlFlow<Result<Option<Self::Start>, Problem>>;

    /// Removes the lines built so far and returns them.
    fn take_lines(&mut self) -> Vec<u8>;

    /// Returns the last lines.
    fn finish(self, next: Option<Self::Start>) -> Result<Vec<u8>, Problem>;
}

/// A list that is being sent.
struct NdjsonList<B> {
    scanner: Scanner,
    /// Builder of the remaining lines; `None` after the last line.
    list: Option<B>,
    deadline: Instant,
}

/// Sends the list that `begin` starts. An error before the first lines becomes a normal problem
/// response.
pub(crate) async fn respond<B: LineBuilder>(
    scanner: Scanner,
    begin: impl FnOnce() -> Result<B, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let deadline = Instant::now() + ANSWER_MAX;
    let list = Some(scanner.run_once(begin).await?);
    let mut lines = NdjsonList { scanner, list, deadline };
    let first = lines.next().await?;
    let rest = stream::try_unfold(lines, |mut lines| async move {
        let next = lines.next().await.map_err(abort_error)?;
        Ok(next.map(|bytes| (bytes, lines)))
    });
    let body = Body::from_stream(stream::iter(first.map(Ok::<_, io::Error>)).chain(rest));
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(MediaType::Lines.as_str()))], body).into_response())
}

impl<B: LineBuilder> NdjsonList<B> {
    /// Returns the next lines; `None` after the last line.
    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let Some(mut list) = self.list.take() else { return Ok(None) };
        let permit = scanner::acquire_page_memory(&self.scanner).await?;
        loop {
            if Instant::now() >= self.deadline {
                let detail =
                    format!("the client did not read the list within {} s: request a part of it, with a filter", ANSWER_MAX.as_secs());
                return Err(Problem::new(ProblemCode::TooBusy, detail));
            }
            let outcome;
            (outcome, list) = self.scanner.run_slice(list, B::add_lines).await;
            match outcome {
                ControlFlow::Break(next) => {
                    return Ok(Some(permit.attach_to(list.finish(next?)?)));
                }
                ControlFlow::Continue(()) => {
                    let lines = list.take_lines();
                    if !lines.is_empty() {
                        self.list = Some(list);
                        return Ok(Some(permit.attach_to(lines)));
                    }
                }
            }
        }
    }
}

/// Converts a problem into an I/O error, which aborts the connection or the HTTP/2 stream. The
/// client then notices that its list is incomplete.
fn abort_error(problem: Problem) -> io::Error {
    tracing::debug!(error = problem.detail(), "a list was aborted");
    io::Error::other("the list was aborted")
}
