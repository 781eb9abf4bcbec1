//! Properties of the answers of a route: their media types, and the inputs of their entity tag. The
//! router declares them for each route.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::tag_basis::TagBasis;

/// A form of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MediaType {
    /// One JSON document.
    Json,
    /// One JSON object per line.
    Lines,
    /// Server-sent events.
    Events,
    /// Plain text.
    Text,
    /// Metrics in the text format of OpenMetrics.
    OpenMetrics,
    /// An HTML page.
    Html,
    /// Style sheet of a page.
    Style,
    /// Script of a page.
    Script,
    /// Unmodified bytes of a value.
    Bytes,
}

/// Properties of the routes, by path as the router has it, with names in braces.
pub(crate) type RouteProperties = HashMap<String, AnswerProperties>;

/// Properties of the answers of a route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerProperties {
    /// Media types that a client can choose, the default first. Empty if the client has no choice.
    pub(crate) media_types: &'static [MediaType],
    /// Inputs of the entity tag.
    pub(crate) tag_basis: TagBasis,
}

impl MediaType {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
            Self::Text => "text/plain",
            Self::OpenMetrics => "application/openmetrics-text",
            Self::Html => "text/html",
            Self::Style => "text/css",
            Self::Script => "text/javascript",
            Self::Bytes => "application/octet-stream",
        }
    }
}

impl AnswerProperties {
    /// Answers with one media type that the client cannot refuse, and without a tag.
    pub(crate) const FIXED: Self = Self::new(&[], TagBasis::None);

    pub(crate) const fn new(media_types: &'static [MediaType], tag_basis: TagBasis) -> Self {
        Self { media_types, tag_basis }
    }

    /// Answers in JSON.
    pub(crate) const fn json(tag_basis: TagBasis) -> Self {
        Self::new(&[MediaType::Json], tag_basis)
    }

    /// Lists, as pages or as lines.
    pub(crate) const fn list(tag_basis: TagBasis) -> Self {
        Self::new(&[MediaType::Json, MediaType::Lines], tag_basis)
    }
}

/// Middleware that adds the properties of the route to the request.
pub(crate) async fn add_properties(State(routes): State<Arc<RouteProperties>>, mut request: Request, next: Next) -> Response {
    let properties = request.extensions().get::<MatchedPath>().and_then(|path| routes.get(path.as_str())).copied();
    request.extensions_mut().insert(properties.unwrap_or(AnswerProperties::FIXED));
    next.run(request).await
}
