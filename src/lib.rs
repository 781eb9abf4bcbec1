//! meshkeep mirrors the state that remote Cilium clusters publish in their etcds, stores it on disk
//! and serves it.
//!
//! The library consists of an etcd client for Cilium's keys ([`kvstore`]), the allocator of
//! identities ([`allocator`]) and the command line as a function ([`cli`]). All other modules are
//! private, so that the compiler reports unused code. ARCHITECTURE.md describes them.
//!
//! ```no_run
//! use meshkeep::kvstore::{ClientFile, ClientOptions, Connection};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let file = ClientFile::parse(&std::fs::read("/var/lib/cilium/clustermesh/paris")?)?;
//! let endpoint = file.endpoints().first().ok_or("the file names no endpoint")?;
//! let connection = Connection::open(&file, endpoint, &ClientOptions::default()).await?;
//! let mut nodes = connection.list(b"cilium/state/nodes/v1/");
//! while let Some(page) = nodes.next_page().await? {
//!     println!("{} nodes at revision {}", page.key_values.len(), page.revision.0);
//! }
//! # Ok(())
//! # }
//! ```

mod admission;
pub mod allocator;
mod announce;
mod api;
pub mod cli;
mod clustermesh;
mod commit;
mod config;
mod demo;
mod doctor;
mod dto;
mod etcd_api;
mod feed;
mod file_watch;
mod files;
mod findings;
mod handle;
pub mod kvstore;
mod model;
mod pack;
mod page;
mod reflect;
mod runtime;
mod server;
mod store;
mod telemetry;
mod view;
mod wire;
mod yaml;

pub use model::{EtcdClusterId, LeaseId, Revision};

/// Private modules for this repository's integration tests and benches. Not part of the public API:
/// anything here may change or disappear.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    macro_rules! opened {
        ($($room:ident),*) => { $(
            #[doc(hidden)]
            pub mod $room {
                pub use crate::$room::*;
            }
        )* };
    }
    opened!(api, commit, feed, handle, model, pack, store, view, wire);
}
