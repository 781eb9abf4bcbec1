//! Errors as RFC 9457 problem documents, each with a stable code.
//!
//! A handler returns a [`Problem`]; [`crate::api::render::errors`] renders the document once the
//! request's path is known.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::dto::problem::ProblemDocument;
use crate::handle::{Loading, NoDecodedRoom};

/// `Retry-After` in seconds for temporary errors: the store is loading, or there is no free slot
/// for a stream or scan.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Codes of the errors of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    BadParameter,
    BadRequest,
    Unauthorized,
    NotFound,
    UnknownRoute,
    MethodNotAllowed,
    NotAcceptable,
    ExpiredPosition,
    BodyTimeout,
    TooLarge,
    UnsupportedMediaType,
    UnknownHost,
    TooManyStreams,
    TooBusy,
    Internal,
    Loading,
    MemoryLimitReached,
    Stopping,
    TooOld,
}

impl Code {
    /// All codes in order of status.
    pub(crate) const ALL: [Self; 19] = [
        Self::BadParameter,
        Self::BadRequest,
        Self::Unauthorized,
        Self::NotFound,
        Self::UnknownRoute,
        Self::MethodNotAllowed,
        Self::NotAcceptable,
        Self::BodyTimeout,
        Self::ExpiredPosition,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::UnknownHost,
        Self::TooManyStreams,
        Self::TooBusy,
        Self::Internal,
        Self::Loading,
        Self::MemoryLimitReached,
        Self::Stopping,
        Self::TooOld,
    ];

    pub(crate) const fn status(self) -> StatusCode {
        self.parts().0
    }

    pub(crate) const fn name(self) -> &'static str {
        self.parts().1
    }

    pub(crate) const fn title(self) -> &'static str {
        self.parts().2
    }

    /// Returns the HTTP status, the name and the title of a code.
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadParameter => (StatusCode::BAD_REQUEST, "badParameter", "A parameter cannot be used"),
            Self::BadRequest => (StatusCode::BAD_REQUEST, "badRequest", "The request cannot be read"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized", "A bearer token is needed"),
            Self::NotFound => (StatusCode::NOT_FOUND, "notFound", "There is no such thing"),
            Self::UnknownRoute => (StatusCode::NOT_FOUND, "unknownRoute", "There is no such path"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "methodNotAllowed", "The path does not take this method"),
            Self::NotAcceptable => (StatusCode::NOT_ACCEPTABLE, "notAcceptable", "No form of the answer is acceptable"),
            Self::ExpiredPosition => (StatusCode::GONE, "expiredPosition", "The position can no longer be served"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "bodyTimeout", "The body did not come in time"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "tooLarge", "The request is too large"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupportedMediaType", "The body is not in a form that is understood")
            }
            Self::UnknownHost => (StatusCode::MISDIRECTED_REQUEST, "unknownHost", "The Host of the request is not served here"),
            Self::TooManyStreams => (StatusCode::TOO_MANY_REQUESTS, "tooManyStreams", "Too many streams are open"),
            Self::TooBusy => (StatusCode::TOO_MANY_REQUESTS, "tooBusy", "Too many requests that take long are being answered"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "meshkeep failed to answer"),
            Self::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading", "The store is still loading"),
            Self::MemoryLimitReached => (StatusCode::SERVICE_UNAVAILABLE, "memoryLimitReached", "It is too large for the memory that is left"),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping", "meshkeep is shutting down"),
            Self::TooOld => (StatusCode::SERVICE_UNAVAILABLE, "tooOld", "The answer is older than asked for"),
        }
    }

    /// Returns the general cause of an error and what to do about it. `detail` describes one
    /// request.
    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Self::BadParameter => {
                "A parameter of the query or the path is unknown, misspelt, given twice, or has a value that cannot be. detail names it and says what is right. Nothing was looked up: a filter that is not understood never widens an answer."
            }
            Self::BadRequest => {
                "The path has escapes that are no UTF-8, the body is not the JSON that is expected, or there is no single Host header. detail says which."
            }
            Self::Unauthorized => {
                "meshkeep was started with --token-file. Send what that file holds as Authorization: Bearer TOKEN. Probes need none."
            }
            Self::NotFound => {
                "Nothing of that name is mirrored. It may never have been there, be deleted, or belong to a cluster that was not read yet: /v1/clusters says which clusters are live."
            }
            Self::UnknownRoute => "The path is none that meshkeep serves. / lists what there is, /openapi.json describes it.",
            Self::MethodNotAllowed => {
                "meshkeep only reads: GET and HEAD everywhere, and POST for batches of lookups. The Allow header names the methods of the path."
            }
            Self::NotAcceptable => {
                "The Accept header names only forms that this path cannot be answered in. detail names those that it can."
            }
            Self::ExpiredPosition => {
                "The position is too old, of another data directory, or not one of ours, and onExpired=fail asked to be told. Read everything anew with snapshot=true and go on from there."
            }
            Self::BodyTimeout => {
                "The body of the request came too slowly, or not at all. Send it again, over a connection that carries it."
            }
            Self::TooLarge => "The body of a request may have 1 MiB, which is room for 10,000 addresses. Ask in several requests.",
            Self::UnsupportedMediaType => "The body of a batch is JSON: send it with Content-Type: application/json.",
            Self::UnknownHost => {
                "The Host of the request is neither an address that meshkeep listens on, nor a loopback name, nor one of --allowed-host. This keeps pages in browsers from reaching a loopback address by a name of their own."
            }
            Self::TooManyStreams => {
                "As many streams are open as may be, in all or for one client. Close some, or come back after Retry-After."
            }
            Self::TooBusy => {
                "Too many requests that take long are being answered, or their answers wait to be read. Come back after Retry-After."
            }
            Self::Internal => "This is a fault in meshkeep. Its log has the details; please report it with them.",
            Self::Loading => "meshkeep has just started and reads its store. Lookups answer before lists. Come back after Retry-After.",
            Self::MemoryLimitReached => {
                "What was asked for is decoded to answer, and other requests have what --decoded-max-bytes allows. Come back after Retry-After, or give meshkeep more."
            }
            Self::Stopping => "meshkeep is shutting down. Connect again in a moment.",
            Self::TooOld => {
                "The request allows an age with maxAge, and a cluster that the answer used has not been heard of for longer, or was never read. ageSeconds says how long. Ask later, allow more, leave the age to meta, or with neverRead=ignore leave out what was never read."
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
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Problem {
    code: Code,
    detail: String,
    age_seconds: Option<f64>,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), age_seconds: None }
    }

    pub(super) const fn code(&self) -> Code {
        self.code
    }

    /// Creates a problem about a parameter.
    pub(crate) fn parameter(name: &str, trouble: impl std::fmt::Display) -> Self {
        Self::new(Code::BadParameter, format!("{name}: {trouble}"))
    }

    /// Creates a problem about a fault in meshkeep, and logs the fault.
    pub(crate) fn internal(trouble: impl std::fmt::Display) -> Self {
        tracing::error!(%trouble, "a request cannot be answered");
        Self::new(Code::Internal, "this is a fault in meshkeep: its log has the details")
    }

    pub(crate) fn too_old(detail: String, age_seconds: Option<f64>) -> Self {
        Self { age_seconds, ..Self::new(Code::TooOld, detail) }
    }

    /// Returns the problem document. `instance` is the path of the request, if known.
    pub(crate) fn document(self, instance: Option<String>) -> ProblemDocument {
        let (status, code, title) = self.code.parts();
        let (problem_type, status) = (format!("/problems/{code}"), status.as_u16());
        ProblemDocument {
            problem_type,
            title: title.into(),
            status,
            detail: self.detail,
            instance,
            code: code.into(),
            age_seconds: self.age_seconds,
        }
    }
}

impl Problem {
    /// Creates a problem about an object for whose decoded form there is no memory.
    pub(crate) fn no_room(what: &str, none: NoDecodedRoom) -> Self {
        Self::new(Code::MemoryLimitReached, format!("{what}: {none}"))
    }
}

impl From<Loading> for Problem {
    fn from(loading: Loading) -> Self {
        Self::new(Code::Loading, loading.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.code.parts().0.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
