//! The remote clusters: which there are, and the life of each.
//!
//! Owns: the config directory (the only importer of `notify`), the registry of clusters, the life of one cluster and the pure
//! state machine by which each of its kinds is brought to what the source has ([`resync`]). Emits commands to the one writer and
//! each cluster's status. Deliberately lacks: knowledge of formats (`wire`), of gRPC (`kvstore`), and of how anything is stored.

mod bounds;
mod cluster;
mod directory;
mod failure;
mod gate;
mod ids;
mod local;
mod mesh;
mod owner;
mod reporter;
pub mod resync;
mod scope;
mod timing;
mod unknown;

pub use bounds::ClusterBounds;
pub use cluster::MeshOptions;
pub use directory::{ClusterFiles, DirectoryEvent, DirectoryOptions, read_cluster_files, watch_directory};
pub use local::{LocalEtcd, watch_local_etcd};
pub use mesh::Mesh;
pub use owner::find_owner;
pub use timing::Timing;
