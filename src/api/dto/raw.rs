//! Conversion of raw entries and rejected values.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::dto::raw::{Entry, Rejected};
use crate::dto::text::rfc3339;
use crate::dto::values::closed::StreamedKind;
use crate::model::{ClusterName, Kind, Record, RefusedKey};

impl From<&Record> for Entry {
    fn from(record: &Record) -> Self {
        Self {
            key: record.key.to_string(),
            value: STANDARD.encode(&record.value),
            create_revision: record.create_sequence.0,
            mod_revision: record.last_sequence.0,
            version: record.version,
            source_revision: Some(record.source.mod_revision.0).filter(|revision| *revision > 0),
            cluster: record.key.cluster.to_string(),
        }
    }
}

impl Rejected {
    /// Converts a rejected value that is not stored as an entry. If it is a cluster config and the
    /// cluster has an earlier good config (`has_config`), that config stays in use.
    pub(crate) fn from_source(cluster: &ClusterName, refused: &RefusedKey, has_config: bool) -> Self {
        Self {
            key: String::from_utf8_lossy(&refused.source_key).into_owned(),
            kind: StreamedKind(refused.kind).into(),
            cluster: cluster.to_string(),
            reason: refused.reason.to_string(),
            first_seen: rfc3339(refused.first_seen),
            last_seen: rfc3339(refused.last_seen),
            value: STANDARD.encode(&refused.value),
            serves_earlier_value: refused.kind == Kind::Cluster && has_config,
        }
    }

    /// Converts the rejected value of a record. `None` if its value is valid.
    pub(crate) fn from_record(record: &Record) -> Option<Self> {
        let rejection = record.rejection.as_ref()?;
        Some(Self {
            key: record.key.to_string(),
            kind: StreamedKind(record.key.kind).into(),
            cluster: record.key.cluster.to_string(),
            reason: rejection.reason.to_string(),
            first_seen: rfc3339(rejection.first_seen),
            last_seen: rfc3339(rejection.last_seen),
            value: STANDARD.encode(&record.value),
            serves_earlier_value: record.object.is_some(),
        })
    }
}
