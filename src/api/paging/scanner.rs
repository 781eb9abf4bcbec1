//! Extractor that admits a request to the long scans (`admission`), and the problem for a refused
//! request.

use std::convert::Infallible;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;

use super::list_request::PAGE_BYTES_MAX;
use crate::admission::{Client, MemoryPermit, ScanExecutor, ScanLimitError, Scanner};
use crate::api::problem::{Problem, ProblemCode};

impl<S: Sync> FromRequestParts<S> for Scanner
where
    ScanExecutor: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(ScanExecutor::from_ref(state).admit(parts.extensions.get().copied().unwrap_or(Client::Local))?)
    }
}

/// Admits a request to the long scans only once it needs it: for an answer about an earlier time,
/// which reads files.
#[derive(Debug)]
pub(crate) struct DeferredScanner {
    scans: ScanExecutor,
    client: Client,
}

impl DeferredScanner {
    /// Admits the request.
    ///
    /// # Errors
    /// Returns [`ProblemCode::TooBusy`] if too many requests are admitted.
    pub(crate) fn admit(&self) -> Result<Scanner, Problem> {
        Ok(self.scans.admit(self.client)?)
    }
}

impl<S: Sync> FromRequestParts<S> for DeferredScanner
where
    ScanExecutor: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        Ok(Self { scans: ScanExecutor::from_ref(state), client: parts.extensions.get().copied().unwrap_or(Client::Local) })
    }
}

impl From<ScanLimitError> for Problem {
    fn from(error: ScanLimitError) -> Self {
        Self::new(ProblemCode::TooBusy, error.to_string())
    }
}

/// Waits for the memory of a list of an earlier time.
///
/// # Errors
/// Returns [`ProblemCode::TooBusy`] if no memory became free in time.
pub(crate) async fn acquire_past_list_memory(scanner: &Scanner) -> Result<MemoryPermit, Problem> {
    scanner.acquire_past_list_memory().await.ok_or_else(|| {
        Problem::new(
            ProblemCode::TooBusy,
            "too many lists of an earlier time are in progress: read the lists that you requested, or try again in a few seconds",
        )
    })
}

/// Waits for the memory of the largest page.
///
/// # Errors
/// Returns [`ProblemCode::TooBusy`] if no memory became free in time.
pub(crate) async fn acquire_page_memory(scanner: &Scanner) -> Result<MemoryPermit, Problem> {
    scanner.acquire_memory(PAGE_BYTES_MAX).await.ok_or_else(|| {
        Problem::new(
            ProblemCode::TooBusy,
            "too many answers are in progress or not read yet: read the answers that you requested, or try again in a few seconds",
        )
    })
}
