//! Tests of the formats: the samples, every rejection, and the traps of docs/develop/protocol.md
//! that concern this module.

mod exports;
mod go_corners;
mod refusals;
mod samples;
mod traps;
mod written;

pub(crate) use written::{slice_object, slice_value};

use super::{Context, decode};
use crate::model::{ClusterId, ClusterName, EntryKey, Kind, LabelSet, MaxConnectedClusters, Object};

fn cluster(name: &str) -> ClusterName {
    ClusterName::parse(name).expect("must be a cluster name")
}

fn labels(pairs: &[(&str, &str)]) -> LabelSet {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn decode_paris(kind: Kind, name: &str, value: &[u8], cluster_id: u32) -> Result<Object, String> {
    let paris = cluster("paris");
    let context = Context { cluster: &paris, cluster_id: ClusterId(cluster_id), max_connected_clusters: MaxConnectedClusters::Clusters255 };
    decode(&EntryKey::new(kind, paris.clone(), name), value, &context)
}
