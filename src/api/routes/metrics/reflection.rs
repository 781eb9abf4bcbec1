//! Metrics of `meshkeep reflect`, which writes the mirror into another etcd. Exposed only there.

use std::time::SystemTime;

use super::clusters::timestamp;
use super::metrics_text::MetricsText;
use crate::handle::Reflection;

/// Adds all metrics of a reflection.
pub(super) fn add(text: &mut MetricsText, reflection: &Reflection) {
    text.gauge("meshkeep_reflect_leader", "1 if this meshkeep writes into the etcd of --to.").sample(&[], u8::from(reflection.is_leader));
    text.gauge("meshkeep_reflect_clusters", "Clusters whose keys are written into the etcd of --to.").sample(&[], reflection.clusters);
    text.gauge("meshkeep_reflect_waiting_keys", "Keys that wait to be written or deleted.").sample(&[], reflection.waiting);
    text.gauge("meshkeep_reflect_lag_seconds", "Age of the oldest waiting key.").sample(&[], reflection.lag.as_secs_f64());
    let mut keys = text.counter("meshkeep_reflect_keys_total", "Keys by outcome; failed ones are tried again.");
    for (outcome, count) in [("written", reflection.written), ("deleted", reflection.deleted), ("failed", reflection.failed)] {
        keys.sample(&[("outcome", outcome)], count);
    }
    text.gauge("meshkeep_reflect_failing", "1 if the etcd of --to cannot be locked, compared or written; /v1/status has the reason.")
        .sample(&[], u8::from(reflection.error.is_some()));
    let mut last = text.gauge(
        "meshkeep_reflect_last_error_timestamp_seconds",
        "Time of the last error that set meshkeep_reflect_failing; missing if there was none.",
    );
    let time: Option<SystemTime> = reflection.last_error.as_ref().map(|(_, time)| *time);
    time.into_iter().for_each(|time| last.sample(&[], timestamp(time)));
}
