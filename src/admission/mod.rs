//! Limits that keep both APIs fair between clients.
//!
//! Identifies a [`Client`], limits its open streams ([`StreamLimiter`]), runs the long requests of
//! all clients in a round robin ([`ScanExecutor`]) and gives each client a share of a
//! [`MemoryBudget`]. `api` and `etcd_api` use it. They choose the error that a client gets when a
//! limit is reached.

mod budget;
mod client;
mod executor;
mod scheduler;
mod streams;
#[cfg(test)]
mod tests;

pub use budget::{BudgetExceeded, ClientShare, MemoryBudget, MemoryPermit};
pub use client::Client;
pub(crate) use executor::Scanner;
pub use executor::{ScanExecutor, ScanLimits};
pub use scheduler::ScanLimitError;
pub use streams::{STREAM_COUNT_MAX, StreamLimiter, StreamPermit};
