//! Tests of the history: whole values, damage, and random lives of a mesh against a full history.

mod life;
mod model;
mod segments;
mod writing;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::model::{ClusterName, EntryKey, Kind, LeaseId, Record, Rejection, Revision, Sequence, SourceStamp};

fn key(kind: Kind, cluster: &str, name: &str) -> EntryKey {
    EntryKey::new(kind, ClusterName::parse(cluster).unwrap(), name)
}

/// Returns the value of an ipcache entry in Cilium's form, or some bytes for other kinds.
fn value(key: &EntryKey, seed: u64) -> Vec<u8> {
    let name = key.name.rsplit_once('#').map_or(&*key.name, |(_, address)| address);
    match key.kind {
        Kind::Ip | Kind::NodeIp if !name.contains('/') => {
            let (identity, host, pod) = (65_536 + seed % 5, seed % 3, seed % 7);
            format!(
                r#"{{"IP":"{name}","Mask":null,"HostIP":"172.18.0.{host}","ID":{identity},"Key":0,"Metadata":"","K8sNamespace":"shop","K8sPodName":"cart-{pod}","K8sPodUID":"","K8sServiceAccount":"cart"}}"#
            )
            .into_bytes()
        }
        _ => format!("k8s:app=a{seed};k8s:io.cilium.k8s.policy.cluster=paris;").into_bytes(),
    }
}

/// Returns a record whose fields all depend on `seed`.
fn record(key: EntryKey, create_sequence: u64, last_sequence: u64, version: u64, seed: u64) -> Arc<Record> {
    let rejection = seed.is_multiple_of(11).then(|| Rejection {
        reason: "field `ip`: not an address".into(),
        first_seen: SystemTime::UNIX_EPOCH + Duration::from_micros(seed),
        last_seen: SystemTime::UNIX_EPOCH + Duration::from_micros(seed + 1),
    });
    Arc::new(Record {
        value: value(&key, seed).into(),
        good_value: seed.is_multiple_of(22).then(|| value(&key, seed + 1).into()),
        key,
        object: None,
        rejection,
        source: SourceStamp { mod_revision: Revision(i64::try_from(seed).unwrap()), lease: LeaseId(7), held: seed.is_multiple_of(5) },
        create_sequence: Sequence(create_sequence),
        last_sequence: Sequence(last_sequence),
        version,
        generation: 0,
    })
}
