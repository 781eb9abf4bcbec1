//! Checks of the keys that a reader needs in a cluster's etcd: permissions, cluster config,
//! canaries, heartbeat, and whether it is the same etcd as before.

use super::local::seconds_now;
use super::{Check, DoctorOptions};
use crate::clustermesh::find_clusters_in_etcd;
use crate::model::{ClusterConfig, ClusterName, EtcdClusterId, Kind, MaxConnectedClusters};
use crate::wire::cluster_config::{KindPublication, kind_publication, parse_cluster_config, validate_cluster_config};
use crate::wire::keys;
use cilium_kvstore::{Connection, KvstoreError, prefix_end};

/// Maximum age of a heartbeat, in seconds. It is written every minute, and readers disconnect after
/// two (`pkg/kvstore/heartbeat`, `etcd.go`).
const HEARTBEAT_AGE_SECONDS_MAX: i64 = 120;

/// Advice for a user who lacks the permission to read.
const RIGHTS_ADVICE: &str = "the user needs the role `remote` in the etcd of clustermesh-apiserver (or `local` in that of a KVStoreMesh): check that the common name of its certificate is a user there";

/// Returns the check for a connection that could not be opened although TLS and `/version` worked.
pub(super) fn failed_login(error: &KvstoreError) -> Check {
    let advice = match error {
        KvstoreError::Authentication { .. } => "correct or remove username and password: Cilium's users log in with certificates",
        KvstoreError::PermissionDenied { .. } => RIGHTS_ADVICE,
        _ => "check the log of that etcd",
    };
    Check::failed("login", error.to_string(), advice)
}

/// Runs all checks over an open connection.
pub(super) async fn check_keys(
    connection: &Connection,
    cluster: &ClusterName,
    user: Option<&str>,
    known: Option<EtcdClusterId>,
    options: &DoctorOptions,
) -> Vec<Check> {
    let mut checks = vec![Check::ok(
        "login",
        user.map_or_else(|| "as the certificate's user, or without a user".to_owned(), |user| format!("as {user}")),
    )];
    checks.push(check_etcd_id(connection.etcd_cluster_id(), known));
    checks.extend(check_alarms(connection).await);
    let config = match check_cluster_config(connection, cluster, options).await {
        Ok(config) => config,
        Err(check) => {
            checks.push(check);
            return checks;
        }
    };
    checks.push(Check::ok("cluster config", describe_config(&config)));
    for kind in Kind::ALL {
        checks.extend(check_kind(connection, cluster, &config, kind).await);
    }
    checks.push(check_heartbeat(connection).await);
    checks
}

/// Reads the cluster config as a sidecar does. Returns a failed check if an agent would refuse the
/// config, or if it is missing; then the check names the cluster that the etcd belongs to.
async fn check_cluster_config(connection: &Connection, cluster: &ClusterName, options: &DoctorOptions) -> Result<ClusterConfig, Check> {
    let step = "cluster config";
    let key_value = match connection.get(keys::cluster_config_key(cluster).as_bytes(), None).await {
        Ok((Some(key_value), _)) => key_value,
        Ok((None, _)) => return Err(missing_config(connection, cluster, options, false).await),
        Err(KvstoreError::PermissionDenied { .. }) => return Err(missing_config(connection, cluster, options, true).await),
        Err(error) => return Err(read_failure(step, &error)),
    };
    let config = parse_cluster_config(&key_value.value);
    let accepted = config.and_then(|config| {
        let named = MaxConnectedClusters::from_number(config.max_connected_clusters).unwrap_or_default();
        validate_cluster_config(&config, options.own_id, options.max_connected_clusters.unwrap_or(named))?;
        Ok(config)
    });
    accepted.map_err(|reason| {
        Check::failed(step, reason, format!("correct it in cluster {cluster}: agents refuse it too, and only Cilium should write it"))
    })
}

async fn missing_config(connection: &Connection, cluster: &ClusterName, options: &DoctorOptions, denied: bool) -> Check {
    let step = "cluster config";
    match find_clusters_in_etcd(connection, cluster, denied).await {
        Ok(missing) if options.legacy_clusters.contains(cluster) && !denied => Check::warning(
            step,
            missing.describe(cluster),
            "meshkeep reads it without a config after 3 minutes, because it is in --legacy-clusters",
        ),
        Ok(missing) => Check::failed(step, missing.describe(cluster), missing.advice(cluster)),
        Err(error) => read_failure(step, &error),
    }
}

/// Checks whether the etcd is the one that the stored revisions come from.
fn check_etcd_id(found: EtcdClusterId, known: Option<EtcdClusterId>) -> Check {
    match known {
        None => Check::ok("history", format!("etcd cluster {found}, not stored yet")),
        Some(known) if known == found => Check::ok("history", format!("etcd cluster {found}, the stored one")),
        Some(known) => Check::warning(
            "history",
            format!("etcd cluster {found}, but the stored entries came from {known}"),
            "the etcd was recreated, or this is another one: the next connection lists and compares everything",
        ),
    }
}

/// Checks the alarms that the etcd reports. Returns `None` if there are none or if the request
/// fails.
async fn check_alarms(connection: &Connection) -> Option<Check> {
    let errors = connection.etcd_errors().await.ok().filter(|errors| !errors.is_empty())?;
    let advice = if errors.iter().any(|error| error == "NOSPACE") {
        "its database is full and it refuses every write: compact and defragment it or raise --quota-backend-bytes, then run `etcdctl alarm disarm`; or restart its clustermesh-apiserver with an empty etcd"
    } else if errors.iter().any(|error| error == "CORRUPT") {
        "its members differ and it refuses every write: replace the corrupt one, or restart its clustermesh-apiserver with an empty etcd"
    } else {
        "check the log of that etcd"
    };
    Some(Check::failed("etcd", format!("it reports {}", errors.join(", ")), advice))
}

fn read_failure(step: &'static str, error: &KvstoreError) -> Check {
    let advice = if matches!(error, KvstoreError::PermissionDenied { .. }) { RIGHTS_ADVICE } else { "check the log of that etcd" };
    Check::failed(step, error.to_string(), advice)
}

fn describe_config(config: &ClusterConfig) -> String {
    let canaries = if config.synced_canaries { "writes canaries" } else { "writes no canaries (before Cilium 1.14)" };
    let form = if config.cached { "a KVStoreMesh's copy" } else { "the cluster's own" };
    format!("id {}, {form}, mesh of {}, {canaries}", config.id, config.max_connected_clusters.max(255))
}

/// Checks that the entries of a kind may be read and that their canary exists.
async fn check_kind(connection: &Connection, cluster: &ClusterName, config: &ClusterConfig, kind: Kind) -> Option<Check> {
    if kind_publication(kind, config) == KindPublication::Absent {
        return None;
    }
    let prefix = keys::watched_prefix(kind, cluster, config.cached);
    let count = match connection.count_at(prefix.as_bytes(), &prefix_end(prefix.as_bytes()), None).await {
        Ok((count, _)) => count,
        Err(error) => return Some(read_failure("entries", &error)),
    };
    let entries = format!("{count} below {prefix}");
    if !config.synced_canaries || kind_publication(kind, config) == KindPublication::Disabled {
        return Some(Check::ok("entries", entries));
    }
    let canary = keys::canary_key(kind, cluster, config.cached);
    Some(match connection.get(canary.as_bytes(), None).await {
        Err(error) => read_failure("entries", &error),
        Ok((Some(_), _)) => Check::ok("entries", entries),
        Ok((None, _)) => Check::failed(
            "entries",
            format!("{entries}, and {canary} is missing"),
            "clustermesh-apiserver (or KVStoreMesh) has not finished its first sync: check its log; until then meshkeep removes no entry",
        ),
    })
}

/// Checks the age of the heartbeat.
async fn check_heartbeat(connection: &Connection) -> Check {
    let key_value = match connection.get(keys::HEARTBEAT.as_bytes(), None).await {
        Err(error) => return read_failure("heartbeat", &error),
        Ok((None, _)) => {
            return Check::warning(
                "heartbeat",
                "there is none",
                "clustermesh-apiserver writes it a minute after its start: run doctor again, then check its log",
            );
        }
        Ok((Some(key_value), _)) => key_value,
    };
    let text = String::from_utf8_lossy(&key_value.value).into_owned();
    match text.trim().parse::<jiff::Timestamp>() {
        Err(_) => Check::ok("heartbeat", "there is one"),
        Ok(time) => {
            let age = seconds_now() - time.as_second();
            if age > HEARTBEAT_AGE_SECONDS_MAX {
                let advice = "clustermesh-apiserver writes it every minute: check that it runs and that its clock is right; agents disconnect after 2 minutes";
                Check::failed("heartbeat", format!("written {age} s ago"), advice)
            } else {
                Check::ok("heartbeat", format!("written {} s ago", age.max(0)))
            }
        }
    }
}
