//! Metrics of the history.

use super::clusters::timestamp;
use super::metrics_text::MetricsText;
use crate::handle::HistoryStatus;

pub(super) fn add(text: &mut MetricsText, status: &HistoryStatus) {
    text.gauge("meshkeep_history_bytes", "Size of the history on disk.").sample(&[], status.bytes);
    text.gauge("meshkeep_history_segments", "Segments of the history.").sample(&[], status.segment_count);
    text.gauge("meshkeep_history_versions", "Earlier versions of entries in the segments.").sample(&[], status.version_count);
    let mut oldest = text.gauge("meshkeep_history_oldest_timestamp_seconds", "Time of the oldest change in the history.");
    if let Some(since) = status.since {
        oldest.sample(&[], timestamp(since));
    }
    let mut reach = text.gauge(
        "meshkeep_history_reach_seconds",
        "Time that a history of --history-max-bytes covers at the current rate of change; absent while the segments cover less than an hour.",
    );
    if let Some(span) = status.reach {
        reach.sample(&[], span.as_secs_f64());
    }
    text.gauge("meshkeep_history_gaps", "Periods within the history whose changes are not known.").sample(&[], status.gap_count);
    text.gauge("meshkeep_history_damaged_segments", "Segments of the history that cannot be read.").sample(&[], status.damaged.len());
    text.gauge("meshkeep_history_failing", "1 if the newest part of the history could not be written.")
        .sample(&[], u8::from(status.failure.is_some()));
}
