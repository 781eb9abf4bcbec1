//! Answers of the API about generated meshes, healthy and with one failure each.

use serde_json::{Value, json};

use crate::dto::findings::Finding;
use crate::dto::status::{Cluster, Status};
use crate::model::{FindingKind, FindingObject};

/// Failure of the cluster paris, or of the whole mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MeshFailure {
    BackingOff,
    TlsRefused,
    PermissionDenied,
    WaitingForCanary,
    TooLarge,
    SourceLost,
    NoClusters,
}

impl MeshFailure {
    pub(super) const ALL: [(Self, &'static str); 7] = [
        (Self::BackingOff, "backing-off"),
        (Self::TlsRefused, "tls-refused"),
        (Self::PermissionDenied, "permission-denied"),
        (Self::WaitingForCanary, "waiting-for-canary"),
        (Self::TooLarge, "too-large"),
        (Self::SourceLost, "source-lost"),
        (Self::NoClusters, "no-clusters"),
    ];

    /// Returns the phase, the error and the age of the data of a cluster with the failure.
    fn cluster_state(self) -> (&'static str, &'static str, f64) {
        match self {
            Self::BackingOff => ("backingOff", "cannot connect to 10.4.0.12:2379: Connection refused", 190.0),
            Self::TlsRefused => (
                "backingOff",
                "TLS with paris.mesh.cilium.io:2379 failed: the server does not trust the authority that signed the client's \
                 certificate CN=remote (issued by CN=Cilium CA); use one that an authority in etcd's --trusted-ca-file signed",
                7_300.0,
            ),
            Self::PermissionDenied => (
                "backingOff",
                "listing \"cilium/cache/services/v1/paris/\": permission denied by etcd; give the user of the client file a role that \
                 allows this (etcdctl role grant-permission)",
                86_400.0,
            ),
            Self::WaitingForCanary => (
                "waitingForCanary",
                "waiting for the canaries cilium/synced/paris/cilium/cache/ip/v1 (ipcache), \
                 cilium/synced/paris/cilium/cache/services/v1 (service): the writer has not finished its first sync",
                2.5,
            ),
            Self::TooLarge => (
                "backingOff",
                "it has at least 2000001 keys, and the limit is 2000000 (--cluster-max-keys): meshkeep keeps the last known state; find \
                 out what writes this much to its etcd, or raise the limit",
                604_800.0,
            ),
            Self::SourceLost | Self::NoClusters => ("sourceLost", "the leases of its keys are no longer renewed", 900.0),
        }
    }

    /// Returns the findings about the failure, without their start times.
    fn findings(self) -> Vec<FindingObject> {
        let (phase, error, _) = self.cluster_state();
        let kind_and_detail = match self {
            Self::BackingOff | Self::TlsRefused => (FindingKind::ClusterUnreachable, format!("paris cannot be reached: {error}")),
            Self::PermissionDenied => (FindingKind::ClusterUnreadable, format!("paris can be reached but not read: {error}")),
            Self::WaitingForCanary => (FindingKind::ClusterStuck, format!("paris has been {phase} for more than 60 s: {error}")),
            Self::TooLarge => (FindingKind::ClusterTooLarge, format!("paris is not read: {error}")),
            Self::SourceLost => {
                (FindingKind::SourceLost, "the leases of paris are no longer renewed: meshkeep serves its last known state".to_owned())
            }
            Self::NoClusters => (FindingKind::NoClusters, NO_CLUSTERS.to_owned()),
        };
        let (kind, detail) = kind_and_detail;
        let clusters: &[&str] = if self == Self::NoClusters { &[] } else { &["paris"] };
        let mut findings = vec![FindingObject::new(kind, if clusters.is_empty() { "" } else { "paris" }, clusters, detail)];
        if self == Self::SourceLost {
            let detail = "1250 keys of paris disappeared with the lease of their writer and are held until the writer is back";
            let held = FindingObject::new(FindingKind::HeldEntries, "paris", ["paris"], detail);
            findings.insert(0, FindingObject { count: Some(1_250), ..held });
        }
        findings
    }
}

const NO_CLUSTERS: &str = "/var/lib/cilium/clustermesh has no client file of a cluster";

/// A mesh of which one cluster, paris, or everything may have failed.
pub(in crate::cli::queries) struct Mesh {
    pub(in crate::cli::queries) status: Status,
    pub(super) clusters: Vec<Value>,
    pub(in crate::cli::queries) findings: Vec<Finding>,
}

impl Mesh {
    /// Returns a mesh of this number of clusters, or of none if that is its failure.
    pub(super) fn generate(cluster_count: usize, failure: Option<MeshFailure>) -> Self {
        let names = cluster_names(if failure == Some(MeshFailure::NoClusters) { 0 } else { cluster_count });
        let clusters: Vec<Value> = names.iter().enumerate().map(|(index, name)| cluster(name, index + 1, failure)).collect();
        let findings = failure.map(|failure| findings(&names, failure)).unwrap_or_default();
        let mut status = json!({
            "version": "0.1.0", "now": "2026-11-26T00:18:53.374Z", "uptimeSeconds": 187_200.0, "loaded": true,
            "clusters": {}, "directory": {"path": "/var/lib/cilium/clustermesh", "readable": true},
            "counts": {"entries": 1650 * names.len(), "nodes": 100 * names.len(), "services": 250 * names.len(), "globalServices": 0,
                "serviceExports": 0, "endpointSlices": 0, "identities": 300 * names.len(), "ipcache": 1000 * names.len(), "rejected": 0},
            "store": {"state": "healthy", "restoredEntries": 0, "damagedRecords": 0},
        });
        if names.is_empty() {
            status["directory"]["noClusters"] = NO_CLUSTERS.into();
        }
        Self { status: serde_json::from_value(status).unwrap(), clusters, findings }
    }

    /// Returns the clusters as the commands read them.
    pub(in crate::cli::queries) fn parsed_clusters(&self) -> Vec<Cluster> {
        self.clusters.iter().map(|cluster| serde_json::from_value(cluster.clone()).unwrap()).collect()
    }
}

/// Returns the names of a mesh. Paris is where its line would be line 201 of 255.
pub(super) fn cluster_names(cluster_count: usize) -> Vec<String> {
    let name = |index: usize| if index == 200.min(cluster_count - 1) { "paris".to_owned() } else { format!("eu-west-{:03}", index + 1) };
    (0..cluster_count).map(name).collect()
}

/// Returns a cluster, which has failed if it is paris.
pub(super) fn cluster(name: &str, id: usize, failure: Option<MeshFailure>) -> Value {
    let resource = |kind: &str, entries: u64| json!({"kind": kind, "entries": entries, "restored": 0, "synced": true, "expected": entries, "origin": "live"});
    let resources = [("node", 100), ("service", 250), ("identity", 300), ("ipcache", 1_000)].map(|(kind, entries)| resource(kind, entries));
    let mut cluster = json!({
        "name": name, "clusterID": id, "phase": "live", "phaseSeconds": 187_000.0, "origin": "live", "ageSeconds": 2.5,
        "configRetrieved": true, "endpoint": format!("https://{name}.mesh.cilium.io:2379"), "resources": resources, "failures": 0,
        "certificateExpiry": "2027-03-01T00:00:00Z",
    });
    if let Some(failure) = failure.filter(|_| name == "paris") {
        let (phase, error, age) = failure.cluster_state();
        for (member, value) in [
            ("phase", json!(phase)),
            ("lastError", json!(error)),
            ("ageSeconds", json!(age)),
            ("phaseSeconds", json!(185.0)),
            ("failures", json!(7)),
        ] {
            cluster[member] = value;
        }
        if phase == "backingOff" {
            cluster["nextRetrySeconds"] = json!(12.0);
        }
    }
    cluster
}

/// Returns the findings of a failure, and two warnings that the mesh has had for longer, in the
/// order of the API.
fn findings(names: &[String], failure: MeshFailure) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !names.is_empty() {
        let conflict = FindingObject::new(
            FindingKind::ExportConflict,
            "shop/cart",
            names,
            "the exports of shop/cart have different ports: agents use those of the oldest export",
        );
        let rejected = FindingObject::new(
            FindingKind::RejectedValues,
            &names[0],
            &names[..1],
            format!("3 values of {} were rejected: the last good values stay in use", names[0]),
        );
        let key = Some(format!("cilium/cache/nodes/v1/{0}/{0}-worker-1", names[0]));
        findings.push((conflict, 100));
        findings.push((FindingObject { count: Some(3), key, ..rejected }, 52));
    }
    findings.extend(failure.findings().into_iter().map(|finding| (finding, 3)));
    // hours and half a minute, so that the printed age is the same for as long as a test takes
    let with_time = |(finding, hours): (FindingObject, i64)| {
        let since = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(hours * 3_600 + 30);
        Finding::from(FindingObject { since: Some(since.to_string()), ..finding })
    };
    findings.into_iter().map(with_time).collect()
}
