//! Reads that verify a copy of an etcd: the counts of several ranges, and the keys of one range.
//!
//! No request asks for an order or filters by revision, because etcd then ignores the limit and
//! reads the whole range with its values.

use std::sync::atomic::Ordering;

use etcd_client::{GetOptions, TxnOp};

use super::check_keys;
use crate::{Connection, KeyValue, KvstoreError, Revision};

/// First keys of a range, as of one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// Revision of the reply.
    pub revision: Revision,
    /// Keys, ascending. Their values are empty if only keys were requested.
    pub key_values: Vec<KeyValue>,
    /// True if the range has more keys than these.
    pub more: bool,
}

impl Connection {
    /// Counts the keys of several ranges `[from, end)` in one read-only transaction. Returns each
    /// count with its revision. If the server refuses the transaction, perhaps because of only one
    /// range, each range is counted with its own request and has its own result.
    ///
    /// # Errors
    /// [`KvstoreError`] if a request fails for another reason than a refusal.
    pub async fn count_many(&self, ranges: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<Result<(u64, Revision), KvstoreError>>, KvstoreError> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        self.wait_for_rate_limit().await;
        if self.shared.transactions.load(Ordering::Relaxed) {
            match self.count_in_transaction(ranges).await {
                Err(error) if error.is_unimplemented_or_denied() => {}
                result => return Ok(result?.into_iter().map(Ok).collect()),
            }
        }
        let mut counts = Vec::with_capacity(ranges.len());
        for (from, end) in ranges {
            match self.count_at(from, end, None).await {
                Err(error) if !error.is_unimplemented_or_denied() => return Err(error),
                result => counts.push(result),
            }
        }
        if counts.iter().any(Result::is_ok) {
            self.shared.transactions.store(false, Ordering::Relaxed);
        }
        Ok(counts)
    }

    async fn count_in_transaction(&self, ranges: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<(u64, Revision)>, KvstoreError> {
        let count =
            |(from, end): &(Vec<u8>, Vec<u8>)| TxnOp::get(from.clone(), Some(GetOptions::new().with_range(end.clone()).with_count_only()));
        let operations: Vec<TxnOp> = ranges.iter().map(count).collect();
        let operation = || format!("counting {} ranges together", ranges.len());
        let (answers, revision) = self.range_in_transaction(operations, operation).await?;
        answers.into_iter().map(|range| Ok((valid_count(range.count)?, revision))).collect()
    }

    /// Returns the number of keys in the range `[from, end)` as of a revision, or as of now, and
    /// etcd's newest revision.
    ///
    /// # Errors
    /// [`KvstoreError`]; `Compacted` or `FutureRevision` if etcd does not have the revision.
    pub async fn count_at(&self, from: &[u8], end: &[u8], at: Option<Revision>) -> Result<(u64, Revision), KvstoreError> {
        let options = GetOptions::new().with_range(end).with_count_only().with_revision(at.map_or(0, |revision| revision.0));
        let (reply, revision) = self.range(from, options).await?;
        Ok((valid_count(reply.count)?, revision))
    }

    /// Reads the first keys of the range `[from, end)`, at most `limit`. Waits for the rate limit
    /// of lists.
    ///
    /// # Errors
    /// [`KvstoreError`]; `TooLarge` if the keys do not fit into one message.
    pub async fn read_range(&self, from: &[u8], end: &[u8], limit: u32, keys_only: bool) -> Result<KeyRange, KvstoreError> {
        self.wait_for_rate_limit().await;
        let options = GetOptions::new().with_range(end).with_limit(limit.into());
        let options = if keys_only { options.with_keys_only() } else { options };
        let (reply, revision) = self.range(from, options).await?;
        check_keys(&reply.kvs, revision)?;
        let key_values: Vec<KeyValue> = reply.kvs.into_iter().map(KeyValue::from).collect();
        let is_ordered = key_values.is_sorted_by(|one, next| one.key < next.key);
        let is_inside = key_values.iter().all(|key_value| key_value.key.as_slice() >= from && key_value.key.as_slice() < end);
        if !is_ordered || !is_inside || (reply.more && key_values.is_empty()) {
            return Err(malformed("keys out of order, or outside the range that was read".into()));
        }
        Ok(KeyRange { revision, key_values, more: reply.more })
    }
}

fn valid_count(count: i64) -> Result<u64, KvstoreError> {
    u64::try_from(count).map_err(|_| malformed("a negative count".into()))
}

fn malformed(reason: String) -> KvstoreError {
    KvstoreError::Malformed { reason }
}
