//! Harness of the integration tests: real etcd servers, certificates, `meshkeep` processes, and
//! helpers that wait for a condition.
#![allow(dead_code, reason = "a toolbox: a helper without a caller may be needed by the next test")]

pub(crate) mod certificates;
pub(crate) mod etcd;
pub(crate) mod hanging;
pub(crate) mod hostile;
pub(crate) mod lossy_watch;
pub(crate) mod mesh;
pub(crate) mod meshkeep;
pub(crate) mod proxy;
pub(crate) mod read_only;
pub(crate) mod scene;
pub(crate) mod slices;
pub(crate) mod stream;
pub(crate) mod truth;
mod values;

use std::future::Future;
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// Maximum time that a test waits for something that normally happens at once. Generous, because
/// all tests share two cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `ask` repeatedly until it returns an answer. Panics with `what` after [`PATIENCE`].
pub(crate) async fn eventually<T, F, Answer>(what: &str, ask: F) -> T
where
    F: FnMut() -> Answer,
    Answer: Future<Output = Option<T>>,
{
    eventually_within(PATIENCE, what, ask).await
}

/// Calls `ask` repeatedly until it returns an answer. Panics with `what` after `patience`.
pub(crate) async fn eventually_within<T, F, Answer>(patience: Duration, what: &str, mut ask: F) -> T
where
    F: FnMut() -> Answer,
    Answer: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {patience:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the next whole second, because times of changes have a precision of a second.
pub(crate) async fn next_second() -> Timestamp {
    let now = Timestamp::now();
    let next = Timestamp::from_second(now.as_second() + 1).unwrap();
    tokio::time::sleep(next.duration_since(now).unsigned_abs()).await;
    next
}

/// Returns the number in an environment variable, or `None` without the variable.
pub(crate) fn number_in_environment(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}
