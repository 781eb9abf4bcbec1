//! Instruments of the process: counters, histograms, spans of traces, the newest log lines, limits
//! on repeated log lines, and requests to verify clusters.
//!
//! Many threads share them, so they use atomics or short locks. The other modules write to them,
//! and `/metrics` and the API read them.

mod etcd_counts;
mod histogram;
mod log_limiter;
mod log_tail;
mod reminders;
mod traces;
mod verification_requests;

pub use etcd_counts::{EtcdCounts, OpenGuard, RangeOutcome};
pub use histogram::{Exemplar, HISTOGRAM_BOUNDS, Histogram, HistogramSnapshot};
pub use log_limiter::{LogLimiter, LogPermit};
pub use log_tail::LogTail;
pub use reminders::{REMINDER_INTERVAL, ReminderSchedule};
pub use traces::{OperationTrace, RequestTrace, TRACE_TARGET, TraceHeaders, TraceId, enable_traces, trace_operation};
pub use verification_requests::{VerificationRequest, VerificationRequests};
