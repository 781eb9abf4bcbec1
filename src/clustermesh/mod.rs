//! Mirrors the remote clusters: finds them, connects to them and keeps the mirror equal to their
//! etcds.
//!
//! The config directory determines which clusters exist. [`Mesh`] runs one task per cluster, and
//! each connection runs one task per kind, driven by the pure state machine in [`resync`]. The
//! module sends commands to the committer and publishes a status for each cluster. `wire` decodes
//! the values, and `cilium_kvstore` is the etcd client.

mod bounds;
mod cluster;
mod concurrency;
mod connection_error;
mod directory;
mod etcd_clusters;
mod ids;
mod local;
mod mesh;
mod reporter;
pub mod resync;
mod scope;
mod timing;
mod unknown;
mod verification;

pub use bounds::ClusterBounds;
pub use cluster::MeshOptions;
pub use directory::{ClusterFileContents, DirectoryEvent, DirectoryOptions, read_cluster_files, watch_directory};
pub use etcd_clusters::find_clusters_in_etcd;
pub use local::{LocalEtcd, watch_local_etcd};
pub use mesh::Mesh;
pub use timing::Timing;
