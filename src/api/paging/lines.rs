//! A list as lines: one JSON object each, all of it without pages, and `meta` last.
//!
//! Owns: how the lines leave. They are made of one snapshot, some hundred KiB at a time, by turns like pages (`admission::scans`), and only when the
//! connection asks for more: a client that reads slowly slows its own list, and one that goes ends it with the slice that runs. An answer that
//! cannot go on is broken off, so that the connection says so, and lacks its last line in any case. Deliberately lacks: what the lines are
//! ([`Making`]).

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

use super::making::Making;
use super::scanner;
use crate::admission::Scanner;
use crate::api::problem::{Code, Problem};
use crate::api::render::accept::Form;

/// How long an answer may take: its snapshot keeps what has changed since. A million ipcache entries, 430 MB, take that long at 6 Mbit/s.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(600);

/// An answer on its way.
struct Lines {
    scanner: Scanner,
    /// What is still to be made; `None` behind the last line.
    making: Option<Making>,
    deadline: Instant,
}

/// The list that `begin` begins. What is wrong with it before its first lines is a problem like any other.
pub(crate) async fn answer(
    scanner: Scanner,
    begin: impl FnOnce() -> Result<Making, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let deadline = Instant::now() + ANSWER_MAX;
    let making = Some(scanner.once(begin).await?);
    let mut lines = Lines { scanner, making, deadline };
    let first = lines.next().await?;
    let rest = stream::try_unfold(lines, |mut lines| async move {
        let next = lines.next().await.map_err(broken_off)?;
        Ok(next.map(|bytes| (bytes, lines)))
    });
    let body = Body::from_stream(stream::iter(first.map(Ok::<_, io::Error>)).chain(rest));
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(Form::Lines.media_type()))], body).into_response())
}

impl Lines {
    /// The next lines.
    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let Some(mut making) = self.making.take() else { return Ok(None) };
        let held = scanner::hold(&self.scanner).await?;
        loop {
            if Instant::now() >= self.deadline {
                let detail = format!("the list was not read within {} s: ask for a part of it, with a filter", ANSWER_MAX.as_secs());
                return Err(Problem::new(Code::TooBusy, detail));
            }
            let outcome;
            (outcome, making) = self.scanner.slice(making, Making::add_lines).await;
            match outcome {
                ControlFlow::Break(next) => {
                    return Ok(Some(held.with(making.finish(next?)?)));
                }
                ControlFlow::Continue(()) => {
                    let lines = making.take_lines();
                    if !lines.is_empty() {
                        self.making = Some(making);
                        return Ok(Some(held.with(lines)));
                    }
                }
            }
        }
    }
}

/// Ends the connection, or the HTTP/2 stream, before its end: what a client has by then is no whole answer.
fn broken_off(problem: Problem) -> io::Error {
    tracing::debug!(?problem, "a list was broken off");
    io::Error::other("the list was broken off")
}
