//! Errors as RFC 9457 problem documents, each with a stable code.
//!
//! A handler returns a [`Problem`]; [`crate::api::render::errors`] renders the document once the
//! request's path is known.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::dto::problem::ProblemDocument;
use crate::dto::streamed::EntryVersion;
pub(crate) use crate::dto::values::closed::ProblemCode;
use crate::handle::{DecodedBudgetError, StoreLoading};

/// `Retry-After` in seconds for temporary errors: the store is loading, or there is no free slot
/// for a stream or scan.
const RETRY_AFTER_SECONDS: u64 = 1;

impl ProblemCode {
    pub(crate) const fn status(self) -> StatusCode {
        self.parts().0
    }

    pub(crate) const fn title(self) -> &'static str {
        self.parts().1
    }

    /// Returns the HTTP status and the title of a code.
    const fn parts(self) -> (StatusCode, &'static str) {
        match self {
            Self::BadParameter => (StatusCode::BAD_REQUEST, "A parameter cannot be used"),
            Self::BadRequest => (StatusCode::BAD_REQUEST, "The request cannot be read"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "A bearer token is needed"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "The client may not send this request"),
            Self::NotFound => (StatusCode::NOT_FOUND, "There is no such object"),
            Self::UnknownRoute => (StatusCode::NOT_FOUND, "There is no such path"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "The path does not support this method"),
            Self::NotAcceptable => (StatusCode::NOT_ACCEPTABLE, "No form of the answer is acceptable"),
            Self::ExpiredPosition => (StatusCode::GONE, "The position can no longer be served"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "The request is too large"),
            Self::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body is not application/json"),
            Self::UnknownHost => (StatusCode::MISDIRECTED_REQUEST, "meshkeep does not accept the Host of the request"),
            Self::TooManyStreams => (StatusCode::TOO_MANY_REQUESTS, "Too many streams are open"),
            Self::TooBusy => (StatusCode::TOO_MANY_REQUESTS, "Too many long requests are in progress"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "meshkeep failed to answer"),
            Self::Loading => (StatusCode::SERVICE_UNAVAILABLE, "The store is still loading"),
            Self::MemoryLimitReached => (StatusCode::SERVICE_UNAVAILABLE, "The memory for decoded values is in use"),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "meshkeep is shutting down"),
            Self::TooOld => (StatusCode::SERVICE_UNAVAILABLE, "The answer is older than maxAge allows"),
        }
    }

    /// Returns the general cause of an error and what to do about it. `detail` describes one
    /// request.
    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Self::BadParameter => {
                "A parameter of the query or the path is unknown, misspelt, repeated, or has an invalid value. detail names it and says what is valid. meshkeep does not answer such a request, because an answer without the filter would have too many items."
            }
            Self::BadRequest => {
                "The escapes in the path are not UTF-8, the body is not the expected JSON, or the request does not have exactly one Host header. detail says which."
            }
            Self::Unauthorized => {
                "meshkeep was started with --token-file. Send the token in that file as Authorization: Bearer TOKEN. Probes need no token."
            }
            Self::Forbidden => {
                "The request does more than read. Either a web page of another origin sent it: if the page may send it, allow its origin with --cors-origin. Or the token is that of --view-token-file, which is only for reading. detail says which."
            }
            Self::NotFound => {
                "meshkeep mirrors no object of that name. Either it never existed, or it was deleted, or its cluster was not read yet. /v1/clusters lists the clusters that are live, and /v1/history the former versions of an object."
            }
            Self::UnknownRoute => "meshkeep does not serve this path. / lists all paths, and /openapi.json describes them.",
            Self::MethodNotAllowed => {
                "The API is read-only: paths support GET and HEAD, and POST for batches of lookups. The Allow header lists the methods of the path."
            }
            Self::NotAcceptable => {
                "The Accept header lists only content types that this path does not have. detail lists those that it has."
            }
            Self::ExpiredPosition => {
                "The position is too old, belongs to another data directory, or is not a position of meshkeep, and the request has onExpired=fail. Read everything again with snapshot=true and continue from there."
            }
            Self::BodyTimeout => {
                "The body of the request arrived too slowly, or not at all. Check the connection and send the request again."
            }
            Self::TooLarge => "The body of a request may have at most 1 MiB, enough for 10,000 addresses. Send several requests.",
            Self::UnsupportedMediaType => "The body of a batch must be JSON. Send it with Content-Type: application/json.",
            Self::UnknownHost => {
                "The Host header is neither an address that meshkeep listens on, nor a loopback name, nor a name in --allowed-host. This check stops web pages that resolve their own name to a loopback address."
            }
            Self::TooManyStreams => {
                "The limit of open streams is reached, either in total or for this client. Close some streams, or retry after Retry-After."
            }
            Self::TooBusy => "Too many long requests are in progress, or their answers have not been read yet. Retry after Retry-After.",
            Self::Internal => "This is a bug in meshkeep. The log has the details; please include them in a report.",
            Self::Loading => {
                "meshkeep has just started and is loading its store. Lookups work earlier than lists. Retry after Retry-After."
            }
            Self::MemoryLimitReached => {
                "The answer needs decoded values, and other requests use all the memory that --decoded-max-bytes allows for them. Retry after Retry-After, or raise --decoded-max-bytes."
            }
            Self::Stopping => "meshkeep is shutting down. Connect again in a few seconds.",
            Self::TooOld => {
                "The data of a cluster that the answer uses is older than maxAge allows, or was never read. ageSeconds has the age. Retry later, or raise maxAge, or omit maxAge and check the age in meta. neverRead=ignore ignores clusters that were never read."
            }
        }
    }

    /// Returns the `Retry-After` of a temporary error, in seconds.
    pub(super) const fn retry_after_seconds(self) -> Option<u64> {
        match self {
            Self::Loading | Self::MemoryLimitReached | Self::Stopping | Self::TooOld | Self::TooManyStreams | Self::TooBusy => {
                Some(RETRY_AFTER_SECONDS)
            }
            Self::BadParameter
            | Self::BadRequest
            | Self::Unauthorized
            | Self::Forbidden
            | Self::NotFound
            | Self::UnknownRoute
            | Self::MethodNotAllowed
            | Self::NotAcceptable
            | Self::ExpiredPosition
            | Self::BodyTimeout
            | Self::TooLarge
            | Self::UnsupportedMediaType
            | Self::UnknownHost
            | Self::Internal => None,
        }
    }
}

/// An error of one request.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    code: ProblemCode,
    detail: String,
    age_seconds: Option<f64>,
    last_version: Option<Box<EntryVersion>>,
}

impl Problem {
    pub(crate) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), age_seconds: None, last_version: None }
    }

    /// Returns the description of this case.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    pub(super) const fn code(&self) -> ProblemCode {
        self.code
    }

    /// Creates a problem about a parameter.
    pub(crate) fn bad_parameter(name: &str, trouble: impl std::fmt::Display) -> Self {
        Self::new(ProblemCode::BadParameter, format!("{name}: {trouble}"))
    }

    /// Creates a problem about a fault in meshkeep, and logs the fault.
    pub(crate) fn internal(trouble: impl std::fmt::Display) -> Self {
        tracing::error!(%trouble, "a request cannot be answered");
        Self::new(ProblemCode::Internal, "this is a bug in meshkeep: its log has the details")
    }

    pub(crate) fn too_old(detail: String, age_seconds: Option<f64>) -> Self {
        Self { age_seconds, ..Self::new(ProblemCode::TooOld, detail) }
    }

    /// Adds the last version of the object that does not exist.
    pub(crate) fn with_last_version(self, version: EntryVersion) -> Self {
        Self { last_version: Some(Box::new(version)), ..self }
    }

    /// Returns the problem document. `instance` is the path of the request, if known.
    pub(crate) fn document(self, instance: Option<String>) -> ProblemDocument {
        let (status, title) = self.code.parts();
        let (problem_type, status) = (format!("/problems/{}", self.code), status.as_u16());
        ProblemDocument {
            problem_type,
            title: title.into(),
            status,
            detail: self.detail,
            instance,
            code: self.code.into(),
            age_seconds: self.age_seconds,
            last_version: self.last_version,
            trace_id: None,
        }
    }
}

impl Problem {
    /// Creates a problem about an object that cannot be decoded because no memory is free.
    pub(crate) fn no_memory(what: &str, none: DecodedBudgetError) -> Self {
        Self::new(ProblemCode::MemoryLimitReached, format!("{what}: {none}"))
    }
}

impl From<StoreLoading> for Problem {
    fn from(loading: StoreLoading) -> Self {
        Self::new(ProblemCode::Loading, loading.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.code.parts().0.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
