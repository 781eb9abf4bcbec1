//! `meshkeep announce`: a cluster of machines outside Kubernetes, published from files as a clustermesh-apiserver does from Kubernetes
//! (docs/announce.md; docs/protocol.md §3.11).
//!
//! Owns: the files and what is wrong with them, and the keys that follow from them (`plan`, pure). Invariant: a file that is wrong is told with
//! its line and why. Deliberately lacks: writing the keys into an etcd.

mod check;
mod dry_run;
mod files;
mod locate;
mod plan;
#[cfg(test)]
mod tests;
mod yaml;

pub use dry_run::dry_run;
pub use files::FileError;
