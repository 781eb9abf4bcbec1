//! The HTTP face: routes, shapes, errors, the change stream and the OpenAPI document. Connections are `server`'s.
//!
//! Receives a [`Handle`](crate::handle::Handle) and asks it; emits HTTP. The only importer of tower-http; of axum with `server`,
//! of utoipa with `dto`. Deliberately lacks: any way to change the mirror, and any knowledge of etcd or of the store.

mod bind_error;
mod bound;
mod dto;
mod etcd;
mod events;
mod guard;
mod meant;
mod openapi;
mod options;
mod paging;
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
pub use bound::Bound;
pub use etcd::etcd_service;
pub use openapi::{OpenapiForm, openapi_json};
pub use options::ApiOptions;
