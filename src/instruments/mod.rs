//! Instruments of the process: counters, histograms, the newest log lines, and limits on repeated
//! log lines.
//!
//! Many threads share them, so they use atomics or short locks. The other modules write to them,
//! and `/metrics` and the API read them.

mod etcd_counts;
mod histogram;
mod log_limiter;
mod log_tail;
mod reminders;

pub use etcd_counts::{EtcdCounts, OpenGuard, RangeOutcome};
pub use histogram::{HISTOGRAM_BOUNDS, Histogram, HistogramSnapshot};
pub use log_limiter::{LogLimiter, LogPermit};
pub use log_tail::LogTail;
pub use reminders::{REMINDER_INTERVAL, ReminderSchedule};
