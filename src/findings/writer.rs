//! Finding about a writer that has written no heartbeat for too long, although its etcd answers.

use crate::dto::text::rfc3339;
use crate::model::{ClusterName, ClusterStatus, FindingKind, FindingObject};

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
    let silent = FindingObject::new(FindingKind::WriterSilent, name.as_str(), [name], detail);
    let advice = alarm_advice(name, &writer.etcd_errors).unwrap_or(silent.advice);
    Some(FindingObject { severity, since, advice, ..silent })
}

/// Returns what to do about an alarm that stops the writer; `None` if the etcd reports none.
fn alarm_advice(name: &ClusterName, errors: &[String]) -> Option<String> {
    let reports = |alarm: &str| errors.iter().any(|error| error == alarm);
    if reports("CORRUPT") {
        Some(format!(
            "the members of the etcd of {name} differ: replace the corrupt one, or restart its clustermesh-apiserver with an empty etcd"
        ))
    } else if reports("NOSPACE") {
        Some(format!(
            "the database of the etcd of {name} is full: compact and defragment it or raise --quota-backend-bytes, then run `etcdctl alarm disarm`; or restart its clustermesh-apiserver with an empty etcd"
        ))
    } else {
        None
    }
}
