//! Connections and access: real sockets, limits, tokens and certificates.

mod access;
mod connections;
mod cross_origin;
mod crowd;
mod disconnect;
mod health_listen;
mod rereading;
pub(super) mod sockets;
mod token;
