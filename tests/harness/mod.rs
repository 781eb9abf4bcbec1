//! What every integration test may use: real etcd servers, certificates, and waiting for a condition.
#![allow(dead_code, reason = "a toolbox: what one topic does not use yet, another will")]

pub(crate) mod certificates;
pub(crate) mod etcd;
pub(crate) mod hanging;
pub(crate) mod hostile;
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

/// How long a test waits for what should come at once: generous, because two cores are shared by all tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until there is an answer; panics, naming what was waited for, once patience runs out.
pub(crate) async fn eventually<T, F, Answer>(what: &str, ask: F) -> T
where
    F: FnMut() -> Answer,
    Answer: Future<Output = Option<T>>,
{
    eventually_within(PATIENCE, what, ask).await
}

/// Asks again and again until there is an answer or this patience runs out.
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
