//! `meshkeep announce`: a cluster of machines outside Kubernetes, published from files as a clustermesh-apiserver does from Kubernetes
//! (docs/operate/announce.md; docs/develop/protocol.md §3.11).
//!
//! Owns: the files and what is wrong with them, the keys that follow from them ([`Plan`], pure), and keeping an etcd equal to those. Invariants:
//! a file that is wrong changes nothing, and is told with its line and why; a change is applied once its file is stable, and one that withdraws
//! many machines a minute later; nothing is written or deleted that is another cluster's; one
//! process announces a cluster at a time. Deliberately lacks: withdrawing anything when it ends: leases do, unless the next start is earlier.

mod addresses;
mod announcer;
mod check;
mod dry_run;
mod fault;
mod files;
mod follow;
mod locate;
mod plan;
mod publish;
mod retire;
#[cfg(test)]
mod tests;
mod yaml;

pub use announcer::{AnnounceError, AnnounceOptions, announce, withdraw};
pub use dry_run::dry_run;
pub use follow::{ChangeRules, MaxWithdrawal};
