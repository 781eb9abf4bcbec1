//! A writer that has been silent for too long behind an etcd that answers.

use super::finding;
use crate::dto::text::rfc3339;
use crate::model::{ClusterName, ClusterStatus, FindingObject};

/// Returns the finding about a cluster whose writer puts no heartbeat.
pub(super) fn silent_writer_finding(name: &ClusterName, status: &ClusterStatus) -> Option<FindingObject> {
    let writer = &status.writer;
    let severity = writer.silence(status.last_contact)?;
    let since = writer.last_heard_time().map(rfc3339);
    let silence = match &since {
        Some(time) if writer.last_heartbeat().is_some() => format!("its writer has written no heartbeat since {time}"),
        Some(time) => format!("its writer has written no heartbeat since meshkeep connected at {time}"),
        None => "its writer writes no heartbeat".to_owned(),
    };
    let errors = match writer.etcd_errors.as_slice() {
        [] => String::new(),
        errors => format!("; the etcd reports {}", errors.join(", ")),
    };
    let detail = format!("the etcd of {name} answers, but {silence}{errors}: later changes in {name} are unknown");
    let silent = finding("writerSilent", name.as_str(), [name], detail, advice(name, &writer.etcd_errors));
    Some(FindingObject { severity, since, ..silent })
}

/// Returns what to do about a silent writer whose etcd reports these errors.
fn advice(name: &ClusterName, errors: &[String]) -> String {
    let reports = |alarm: &str| errors.iter().any(|error| error == alarm);
    if reports("CORRUPT") {
        format!(
            "the members of the etcd of {name} differ: replace the corrupt one, or restart its clustermesh-apiserver with an empty etcd"
        )
    } else if reports("NOSPACE") {
        format!(
            "the database of the etcd of {name} is full: compact and defragment it or raise --quota-backend-bytes, then run `etcdctl alarm disarm`; or restart its clustermesh-apiserver with an empty etcd"
        )
    } else {
        format!("check that the clustermesh-apiserver (or KVStoreMesh) of {name} runs, and that it can write to its etcd")
    }
}
