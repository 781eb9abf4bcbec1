//! Answers about an earlier time: `at=`.

mod explanations;
mod lookups;
mod objects;

use serde_json::Value;

use crate::api::tests::lists::history::text;

/// Returns the identities of the candidates in an answer's `meta` or in an item.
fn candidates(answer: &Value) -> Vec<u64> {
    let candidates = answer["candidates"].as_array().into_iter().flatten();
    candidates.map(|version| version["object"]["identity"].as_u64().unwrap()).collect()
}

/// Returns a path with `at=`, in seconds since the start of the history.
fn at_time(path: &str, seconds: u64) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}at={}", text(seconds))
}
