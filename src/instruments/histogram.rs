//! Histograms of durations. Many threads write to one concurrently without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use super::traces::TraceId;

/// Upper bounds of the buckets, in seconds. Each is about twice the previous one: from the time of
/// a lookup to longer than any client waits (the upper ones are Prometheus's defaults).
pub const HISTOGRAM_BOUNDS: [f64; 16] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Number of buckets: one for each bound, and one for durations above all bounds.
const BUCKETS: usize = HISTOGRAM_BOUNDS.len() + 1;

/// Duration of a request whose trace is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Exemplar {
    /// Trace of the request.
    pub trace: TraceId,
    /// Duration in seconds.
    pub seconds: f64,
    /// End of the request.
    pub time: SystemTime,
}

/// Durations, counted per bucket.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Count of each bucket, not cumulative. The last one counts durations above all bounds.
    counts: [AtomicU64; BUCKETS],
    sum_nanoseconds: AtomicU64,
    /// Newest exemplar of each bucket. Without traces it needs no memory.
    exemplars: OnceLock<Mutex<Box<[Option<Exemplar>; BUCKETS]>>>,
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
    /// Newest exemplar of each bucket. Empty without traces.
    pub exemplars: Vec<Option<Exemplar>>,
}

impl Histogram {
    /// Records a duration.
    pub fn record(&self, time: Duration) {
        if let Some(count) = self.counts.get(bucket_of(time)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Records a duration as the exemplar of its bucket, in addition to [`Self::record`].
    pub fn record_exemplar(&self, time: Duration, trace: TraceId) {
        let exemplar = Exemplar { trace, seconds: time.as_secs_f64(), time: SystemTime::now() };
        let exemplars = self.exemplars.get_or_init(Mutex::default);
        if let Some(newest) = exemplars.lock().unwrap_or_else(PoisonError::into_inner).get_mut(bucket_of(time)) {
            *newest = Some(exemplar);
        }
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
        let sum_seconds = Duration::from_nanos(self.sum_nanoseconds.load(Ordering::Relaxed)).as_secs_f64();
        let exemplars = self.exemplars.get().map(|all| all.lock().unwrap_or_else(PoisonError::into_inner).to_vec());
        HistogramSnapshot { up_to, count, sum_seconds, exemplars: exemplars.unwrap_or_default() }
    }
}

fn bucket_of(time: Duration) -> usize {
    let seconds = time.as_secs_f64();
    HISTOGRAM_BOUNDS.partition_point(|bound| *bound < seconds)
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
