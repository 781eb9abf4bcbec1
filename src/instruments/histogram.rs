//! Histograms of durations. Many threads write to one concurrently without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in seconds. Each is about twice the previous one: from the time of
/// a lookup to longer than any client waits (the upper ones are Prometheus's defaults).
pub const HISTOGRAM_BOUNDS: [f64; 16] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Durations, counted per bucket.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Count of each bucket, not cumulative. The last one counts durations above all bounds.
    counts: [AtomicU64; HISTOGRAM_BOUNDS.len() + 1],
    sum_nanoseconds: AtomicU64,
}

/// Snapshot of a [`Histogram`].
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramSnapshot {
    /// Number of durations up to and including each bound (cumulative).
    pub up_to: [u64; HISTOGRAM_BOUNDS.len()],
    /// Number of all durations.
    pub count: u64,
    /// Sum of all durations, in seconds.
    pub sum_seconds: f64,
}

impl Histogram {
    /// Records a duration.
    pub fn record(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bound = HISTOGRAM_BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(bound) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns a snapshot of the counts.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut count = 0;
        let mut add = |one: &AtomicU64| {
            count += one.load(Ordering::Relaxed);
            count
        };
        let mut up_to = [0; HISTOGRAM_BOUNDS.len()];
        for (up_to, one) in up_to.iter_mut().zip(&self.counts) {
            *up_to = add(one);
        }
        let count = self.counts.last().map_or(0, add);
        HistogramSnapshot { up_to, count, sum_seconds: Duration::from_nanos(self.sum_nanoseconds.load(Ordering::Relaxed)).as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_cumulative_buckets() {
        let histogram = Histogram::default();
        for milliseconds in [0, 1, 2, 10_000, 60_000] {
            histogram.record(Duration::from_millis(milliseconds));
        }
        let times = histogram.snapshot();
        assert_eq!(times.up_to, [1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]);
        assert_eq!((times.count, times.sum_seconds), (5, 70.003));
    }
}
