//! Consistency checks of a list against the server's count of keys. A truncated list would make the
//! missing keys look deleted, and an endless one would fill the memory. No IO.

use etcd_client::proto::PbKeyValue;

use super::check_keys;
use crate::error::printable;
use crate::{KeyValue, KvstoreError, Page, Revision};

/// Checks the pages of one list: keys of one range, as of one revision, in ascending order.
pub(crate) struct ListChecker {
    /// Key with which the next page starts.
    next: Vec<u8>,
    /// End of the range; `\0` is the end of all keys.
    end: Vec<u8>,
    revision: Revision,
    /// Number of keys that the server counted.
    total_count: u64,
    /// Number of keys that have been received.
    received_count: u64,
}

impl ListChecker {
    pub(crate) fn new(start: Vec<u8>, end: Vec<u8>, revision: Revision, total_count: u64) -> Self {
        Self { next: start, end, revision, total_count, received_count: 0 }
    }

    /// Returns the key with which the next page starts.
    pub(crate) fn next(&self) -> &[u8] {
        &self.next
    }

    /// Returns the revision of the whole list.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// Checks the next keys and returns them as a page.
    pub(crate) fn accept(&mut self, raw_key_values: Vec<PbKeyValue>, is_last: bool) -> Result<Page, KvstoreError> {
        check_keys(&raw_key_values, self.revision)?;
        let mut previous: Option<&[u8]> = None;
        for PbKeyValue { key, .. } in &raw_key_values {
            let ascends = previous.map_or(*key >= self.next, |previous| key.as_slice() > previous);
            if !ascends || (self.end != [0] && *key >= self.end) {
                return Err(malformed(format!("{} is out of order in a list", printable(key))));
            }
            previous = Some(key);
        }
        self.received_count += raw_key_values.len() as u64;
        if raw_key_values.is_empty() && !is_last {
            // otherwise the same page would be requested forever
            return Err(malformed("an empty page that is not the last of a list".into()));
        }
        if self.received_count > self.total_count || (is_last && self.received_count < self.total_count) {
            let (received_count, total) = (self.received_count, self.total_count);
            let reason = format!("{received_count} keys of a list that has {total} by the server's own count");
            return Err(if received_count > total { KvstoreError::TooManyKeys { reason } } else { malformed(reason) });
        }
        if let Some(last) = raw_key_values.last() {
            self.next.clone_from(&last.key);
            self.next.push(0);
        }
        let key_values = raw_key_values.into_iter().map(KeyValue::from).collect();
        Ok(Page { revision: self.revision, key_values, total_count: self.total_count })
    }
}

fn malformed(reason: String) -> KvstoreError {
    KvstoreError::Malformed { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_values(keys: &[&str]) -> Vec<PbKeyValue> {
        keys.iter().map(|key| PbKeyValue { key: key.as_bytes().to_vec(), mod_revision: 7, ..Default::default() }).collect()
    }

    fn checker(total_count: u64) -> ListChecker {
        ListChecker::new(b"a/".to_vec(), b"a0".to_vec(), Revision(7), total_count)
    }

    fn error_text(result: Result<Page, KvstoreError>) -> String {
        result.unwrap_err().to_string().replace("etcd sent an invalid answer: ", "")
    }

    #[test]
    fn the_number_of_keys_must_equal_the_count() {
        let mut complete = checker(3);
        assert_eq!(complete.accept(key_values(&["a/1", "a/2"]), false).unwrap().key_values.len(), 2);
        assert_eq!(complete.next(), b"a/2\0");
        assert_eq!(complete.accept(key_values(&["a/3"]), true).unwrap().total_count, 3);
        checker(0).accept(vec![], true).unwrap();

        assert_eq!(error_text(checker(2).accept(key_values(&["a/1"]), true)), "1 keys of a list that has 2 by the server's own count");
        let mut endless = checker(2);
        endless.accept(key_values(&["a/1", "a/2"]), false).unwrap();
        assert_eq!(error_text(endless.accept(key_values(&["a/3"]), false)), "3 keys of a list that has 2 by the server's own count");
        assert_eq!(error_text(checker(2).accept(vec![], false)), "an empty page that is not the last of a list");
    }

    #[test]
    fn keys_must_be_in_order_in_range_and_not_newer_than_the_list() {
        for keys in [&["b"][..], &["a0"], &["A"], &["a/2", "a/1"], &["a/1", "a/1"]] {
            let text = error_text(checker(9).accept(key_values(keys), false));
            assert!(text.ends_with(" is out of order in a list"), "{text}");
        }
        let mut repeated = checker(9);
        repeated.accept(key_values(&["a/1", "a/2"]), false).unwrap();
        assert_eq!(error_text(repeated.accept(key_values(&["a/2"]), false)), "\"a/2\" is out of order in a list");
        ListChecker::new(vec![0], vec![0], Revision(7), 1).accept(key_values(&["zz"]), true).unwrap();
        let newer = ListChecker::new(b"a/".to_vec(), b"a0".to_vec(), Revision(6), 1).accept(key_values(&["a/1"]), true);
        assert_eq!(error_text(newer), "\"a/1\" of revision 7 in a reply of revision 6");
    }
}
