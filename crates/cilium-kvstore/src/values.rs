//! Keys, values and events of etcd, in types that do not depend on the client crate.

use std::fmt;
use std::sync::Arc;

use etcd_client::proto::{PbEvent, PbKeyValue};

use crate::error::printable;
use crate::{KvstoreError, LeaseId, Revision};

/// `mvccpb.Event.EventType`: a key was created or changed.
pub(crate) const EVENT_TYPE_PUT: i32 = 0;
/// `mvccpb.Event.EventType`: a key was deleted, or its lease expired.
pub(crate) const EVENT_TYPE_DELETE: i32 = 1;

/// One key at one revision. `Debug` shows key and value as text and truncates long ones.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// Name of the key.
    pub key: Vec<u8>,
    /// Value of the key.
    pub value: Arc<[u8]>,
    /// Revision at which the key was created after its last deletion.
    pub create_revision: Revision,
    /// Revision of the last put.
    pub mod_revision: Revision,
    /// Number of puts since the key was created, starting with 1.
    pub version: i64,
    /// Lease that the key is attached to; 0 means none.
    pub lease: LeaseId,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The key was created or changed.
    Put(KeyValue),
    /// The key was deleted, or its lease expired.
    Delete {
        /// Name of the key.
        key: Vec<u8>,
        /// Revision of the deletion.
        mod_revision: Revision,
    },
}

impl Event {
    /// Returns the revision of the change.
    #[must_use]
    pub fn mod_revision(&self) -> Revision {
        match self {
            Self::Put(key_value) => key_value.mod_revision,
            Self::Delete { mod_revision, .. } => *mod_revision,
        }
    }
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (printable(&self.key), printable(&self.value));
        let (created, modified) = (self.create_revision, self.mod_revision);
        write!(f, "{key} = {value} (created {created}, modified {modified}, version {}, lease {:x})", self.version, self.lease.0)
    }
}

impl From<PbKeyValue> for KeyValue {
    fn from(raw: PbKeyValue) -> Self {
        Self {
            key: raw.key,
            value: raw.value.into(),
            create_revision: Revision(raw.create_revision),
            mod_revision: Revision(raw.mod_revision),
            version: raw.version,
            lease: LeaseId(raw.lease),
        }
    }
}

impl TryFrom<PbEvent> for Event {
    type Error = KvstoreError;

    /// Converts the event type by its number, because the client crate's own accessor panics on an
    /// unknown type.
    fn try_from(raw: PbEvent) -> Result<Self, KvstoreError> {
        let Some(key_value) = raw.kv else {
            return Err(KvstoreError::Malformed { reason: "a watch event without a key".into() });
        };
        match raw.r#type {
            EVENT_TYPE_PUT => Ok(Self::Put(key_value.into())),
            EVENT_TYPE_DELETE => Ok(Self::Delete { key: key_value.key, mod_revision: Revision(key_value.mod_revision) }),
            unknown => Err(KvstoreError::Malformed {
                reason: format!("a watch event of unknown type {unknown} for {}", printable(&key_value.key)),
            }),
        }
    }
}

/// Returns the end of the range of all keys with a prefix: the prefix with its last byte
/// incremented, or `\0` ("to the end") if no byte can be incremented (etcd's
/// `clientv3.GetPrefixRangeEnd`).
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end
        }
        None => vec![0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_first_key_after_it() {
        assert_eq!(prefix_end(b"cilium/.heartbeat"), b"cilium/.heartbeau");
        assert_eq!(prefix_end(b"a/"), b"a0");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), b"\0");
        assert_eq!(prefix_end(b""), b"\0");
    }

    #[test]
    fn an_event_of_unknown_type_is_an_error() {
        let raw = |r#type, kv| PbEvent { r#type, kv, prev_kv: None };
        let key = || Some(PbKeyValue { key: b"a".to_vec(), mod_revision: 7, ..Default::default() });
        assert_eq!(Event::try_from(raw(1, key())).unwrap(), Event::Delete { key: b"a".to_vec(), mod_revision: Revision(7) });
        assert_eq!(Event::try_from(raw(0, key())).unwrap().mod_revision(), Revision(7));
        let message = Event::try_from(raw(2, key())).unwrap_err().to_string();
        assert_eq!(message, "etcd sent an invalid answer: a watch event of unknown type 2 for \"a\"");
        assert!(Event::try_from(raw(0, None)).is_err());
    }
}
