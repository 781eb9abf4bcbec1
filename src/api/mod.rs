//! The HTTP API: routes, schemas, errors, the change stream and the OpenAPI document. `server`
//! handles connections.
//!
//! All data comes from a [`Handle`](crate::handle::Handle): this module cannot change the mirror
//! and does not access the store. It is the only module that imports tower-http; `server` also uses
//! axum, and `dto` also uses utoipa.

mod bind_error;
mod bound_api;
mod dto;
mod etcd;
mod events;
mod guard;
mod openapi;
mod options;
mod paging;
mod path_suggestions;
mod problem;
mod query;
mod render;
mod request_times;
mod router;
mod routes;
mod state;
#[cfg(test)]
mod tests;

use router::documented_routes;

pub use bind_error::BindError;
pub use bound_api::BoundApi;
pub use etcd::etcd_service;
pub use openapi::{DocumentVersion, openapi_json};
pub use options::ApiOptions;
