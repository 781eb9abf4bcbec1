//! Bodies of posts, in each format of `--on-problem-format`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::delivered::PendingPost;
use crate::dto::findings::Finding;
use crate::dto::text::rfc3339;
use crate::model::{FindingObject, WebhookFormat};

/// Name of each alert. The label `kind` has the kind of the finding.
const ALERT_NAME: &str = "MeshkeepProblem";

/// Interval between two posts of a finding that lasts. An Alertmanager forgets alerts when it
/// restarts, and expects its clients to repeat them.
const REPEAT_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Time after which an Alertmanager ends an alert that was not repeated. Four intervals, as
/// Prometheus does it; at ten posts per second, that is enough to repeat all 8,192 findings.
const ALERT_LIFETIME: Duration = Duration::from_secs(20 * 60);

/// Body of a post in meshkeep's own format.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OwnBody<'a> {
    event: &'static str,
    time: String,
    finding: Finding,
    meshkeep: SenderInfo<'a>,
}

/// Identification of the sender. A new start time shows the receiver a restart, after which all
/// findings are posted again.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SenderInfo<'a> {
    version: &'static str,
    started_at: &'a str,
}

/// Alert of Alertmanager's API v2 (`postableAlert`). Alerts with equal labels are one alert.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    labels: BTreeMap<&'static str, String>,
    annotations: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<String>,
    ends_at: String,
}

/// Event of CloudEvents 1.0 in structured content mode.
#[derive(Debug, Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: String,
    source: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    subject: String,
    time: String,
    datacontenttype: &'static str,
    data: OwnBody<'a>,
}

/// Returns the media type of a format.
pub(super) const fn content_type(format: WebhookFormat) -> &'static str {
    match format {
        WebhookFormat::Json | WebhookFormat::Alertmanager => "application/json",
        WebhookFormat::CloudEvents => "application/cloudevents+json",
    }
}

/// Returns the interval in which a finding that lasts is posted again. `None` if it is posted once.
pub(super) const fn repeat_interval(format: WebhookFormat) -> Option<Duration> {
    match format {
        WebhookFormat::Json | WebhookFormat::CloudEvents => None,
        WebhookFormat::Alertmanager => Some(REPEAT_INTERVAL),
    }
}

/// Encodes the body of a post. Returns `None` if the object is not a finding.
pub(super) fn encode(format: WebhookFormat, post: &PendingPost, started_at: &str, now: SystemTime) -> Option<Vec<u8>> {
    let finding = post.object.as_finding()?;
    let own = || OwnBody {
        event: if post.has_appeared { "appeared" } else { "gone" },
        time: rfc3339(now),
        finding: Finding::from(finding),
        meshkeep: SenderInfo { version: env!("CARGO_PKG_VERSION"), started_at },
    };
    match format {
        WebhookFormat::Json => serde_json::to_vec(&own()),
        WebhookFormat::Alertmanager => serde_json::to_vec(&[alert(finding, post.has_appeared, now)]),
        WebhookFormat::CloudEvents => serde_json::to_vec(&cloud_event(finding, own())),
    }
    .ok()
}

fn alert(finding: &FindingObject, has_appeared: bool, now: SystemTime) -> Alert {
    let mut labels = BTreeMap::from([
        ("alertname", ALERT_NAME.to_owned()),
        ("finding", finding.id.clone()),
        ("kind", finding.kind.to_string()),
        ("severity", finding.severity.to_string()),
    ]);
    // as in the alerts of deploy/prometheus
    if let [cluster] = finding.clusters.as_slice() {
        labels.insert("target_cluster", cluster.clone());
    }
    let annotations = BTreeMap::from([("summary", finding.detail.clone()), ("description", finding.advice.clone())]);
    let ends_at = rfc3339(if has_appeared { now + ALERT_LIFETIME } else { now });
    Alert { labels, annotations, starts_at: finding.since.clone(), ends_at }
}

/// The id is the same if the post is sent again because its answer was lost.
fn cloud_event<'a>(finding: &FindingObject, data: OwnBody<'a>) -> CloudEvent<'a> {
    let since = finding.since.as_deref().unwrap_or(data.meshkeep.started_at);
    CloudEvent {
        specversion: "1.0",
        id: format!("{}/{}/{since}", finding.id, data.event),
        source: "meshkeep",
        kind: if data.event == "gone" { "meshkeep.problem.gone" } else { "meshkeep.problem.appeared" },
        subject: finding.id.clone(),
        time: data.time.clone(),
        datacontenttype: "application/json",
        data,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::model::{FindingKind, Object};

    fn encoded(format: WebhookFormat, has_appeared: bool) -> Value {
        let since = Some("2026-11-25T12:00:00Z".to_owned());
        let finding = FindingObject { since, ..FindingObject::new(FindingKind::SourceLost, "paris", ["paris"], "it is lost") };
        let post = PendingPost { key: finding.stream_key(), object: Arc::new(Object::Finding(finding.into())), has_appeared };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        serde_json::from_slice(&encode(format, &post, "2026-11-25T11:00:00Z", now).unwrap()).unwrap()
    }

    #[test]
    fn an_alert_has_labels_and_an_end() {
        let alert = |ends_at: &str| {
            let labels = json!({
                "alertname": "MeshkeepProblem", "finding": "sourceLost/paris", "kind": "sourceLost", "severity": "warning", "target_cluster": "paris",
            });
            let advice = "check that the KVStoreMesh of paris, or its clustermesh-apiserver, is running";
            let annotations = json!({"summary": "it is lost", "description": advice});
            json!([{"labels": labels, "annotations": annotations, "startsAt": "2026-11-25T12:00:00Z", "endsAt": ends_at}])
        };
        assert_eq!(encoded(WebhookFormat::Alertmanager, true), alert("2027-01-15T08:20:00Z"));
        assert_eq!(encoded(WebhookFormat::Alertmanager, false), alert("2027-01-15T08:00:00Z"));
    }

    #[test]
    fn a_cloud_event_has_the_own_format_as_data() {
        let event = encoded(WebhookFormat::CloudEvents, false);
        assert_eq!(event["data"], encoded(WebhookFormat::Json, false));
        let attributes = ["specversion", "id", "source", "type", "subject", "time", "datacontenttype"].map(|name| event[name].as_str());
        let expected = [
            "1.0",
            "sourceLost/paris/gone/2026-11-25T12:00:00Z",
            "meshkeep",
            "meshkeep.problem.gone",
            "sourceLost/paris",
            "2027-01-15T08:00:00Z",
            "application/json",
        ];
        assert_eq!(attributes, expected.map(Some));
        let appeared = encoded(WebhookFormat::CloudEvents, true);
        assert_ne!(appeared["id"], event["id"]);
        assert_eq!(appeared["type"], "meshkeep.problem.appeared");
    }
}
