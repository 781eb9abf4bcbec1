//! State of the process: settings, addresses, counters, timings and log lines.

pub(super) mod etcd_counts;
pub(super) mod histogram;
pub(super) mod listen;
pub(super) mod log_limiter;
pub(super) mod log_tail;
pub(super) mod reminders;
pub(super) mod setting;
