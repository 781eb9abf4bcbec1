//! meshkeep mirrors the state that remote Cilium clusters publish in their etcds, stores it on disk
//! and serves it.
//!
//! The library's only public module is [`cli`], which runs the command line. The etcd client and
//! the allocator of identities are a crate of their own, `cilium-kvstore`. All other modules are
//! private, so that the compiler reports unused code. ARCHITECTURE.md describes them.

mod admission;
mod announce;
mod api;
pub mod cli;
mod client_file;
mod clustermesh;
mod commit;
mod config;
mod demo;
mod doctor;
mod dto;
mod dump;
mod etcd_api;
mod feed;
mod file_watch;
mod files;
mod findings;
mod handle;
mod history;
mod instruments;
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

/// Private modules for this repository's integration tests and benches. Not part of the public API:
/// anything here may change or disappear.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    macro_rules! reexport {
        ($($room:ident),*) => { $(
            #[doc(hidden)]
            pub mod $room {
                pub use crate::$room::*;
            }
        )* };
    }
    reexport!(api, client_file, commit, feed, handle, history, model, pack, store, view, wire);
}
