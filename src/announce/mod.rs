//! `meshkeep announce`: publishes a cluster of machines outside Kubernetes from files, as a
//! clustermesh-apiserver publishes a cluster from Kubernetes (docs/operate/announce.md;
//! docs/develop/protocol.md §3.11).
//!
//! The files are validated and converted to a `ClusterPlan`, the keys and values of the cluster.
//! The `publish` module keeps an etcd equal to the plan. The rules:
//! - A file with errors changes nothing; each error is logged with its line and reason.
//! - A change is applied once its file is stable. A change that withdraws many machines is held
//!   back for a minute.
//! - Keys of other clusters are neither written nor deleted.
//! - One process at a time announces a cluster.
//! - Nothing is withdrawn when the process ends: the leases expire unless it starts again earlier.

mod addresses;
mod announcer;
mod check;
mod dry_run;
mod error;
mod files;
mod follow;
mod plan;
mod publish;
mod retire;
#[cfg(test)]
mod tests;
mod yaml;
mod yaml_path;

pub use announcer::{AnnounceError, AnnounceOptions, announce, retire_cluster};
pub use dry_run::dry_run;
pub use follow::{ChangeRules, MaxWithdrawal};
