//! Extractor that admits requests to the long scans, and the problem for a refused one
//! (`admission`).

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;

use super::listing::PAGE_BYTES_MAX;
use crate::admission::{Client, Held, NoTurn, Scanner, Scans};
use crate::api::problem::{Code, Problem};

impl<S: Sync> FromRequestParts<S> for Scanner
where
    Scans: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Scans::from_ref(state).enter(parts.extensions.get().copied().unwrap_or(Client::Local))?)
    }
}

impl From<NoTurn> for Problem {
    fn from(none: NoTurn) -> Self {
        Self::new(Code::TooBusy, none.to_string())
    }
}

/// Waits for the memory of the largest page.
///
/// # Errors
/// Returns [`Code::TooBusy`] if no memory became free in time.
pub(crate) async fn hold(scanner: &Scanner) -> Result<Held, Problem> {
    scanner.hold(PAGE_BYTES_MAX).await.ok_or_else(|| {
        Problem::new(
            Code::TooBusy,
            "too many answers are in progress or not read yet: read the answers that you requested, or try again in a few seconds",
        )
    })
}
