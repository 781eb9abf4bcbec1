//! Keys and bytes as they are mirrored, and those that could not be used.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use utoipa::ToSchema;

use super::rfc3339;
use crate::model::{ClusterName, Kind, Record, RefusedKey};

/// One mirrored key with the newest bytes, usable or not.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// The key in cache form, whatever form the source uses.
    key: String,
    /// The bytes exactly as they came, in base64.
    value: String,
    /// Our sequence when the key appeared.
    create_revision: u64,
    /// Our sequence of its last change.
    mod_revision: u64,
    /// How many times it changed since it appeared, starting with 1.
    version: u64,
    /// The source's revision of its last put.
    source_revision: i64,
    /// The cluster that it comes from.
    cluster: String,
}

/// One key whose newest bytes could not be used.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rejected {
    /// The key in cache form; that of the source where it is no entry.
    key: String,
    /// The kind of the key; `cluster` for a cluster config.
    kind: &'static str,
    /// The cluster that it comes from.
    cluster: String,
    /// What is wrong, in words that name the field.
    reason: String,
    /// When the key first became unusable, without a good value in between.
    first_seen: String,
    /// When the newest bytes came.
    last_seen: String,
    /// The bytes exactly as they came, in base64; of a cluster config, or where the key is no entry, the first 4,096.
    value: String,
    /// Whether an earlier, usable value is still served.
    serves_earlier_value: bool,
}

impl From<&Record> for Entry {
    fn from(record: &Record) -> Self {
        Self {
            key: record.key.to_string(),
            value: STANDARD.encode(&record.value),
            create_revision: record.create_sequence.0,
            mod_revision: record.last_sequence.0,
            version: record.version,
            source_revision: record.source.mod_revision.0,
            cluster: record.key.cluster.to_string(),
        }
    }
}

impl Rejected {
    /// What is wrong with a key that is no entry. Of a cluster config the last good one stays in force.
    pub(crate) fn of_source(cluster: &ClusterName, refused: &RefusedKey, has_config: bool) -> Self {
        Self {
            key: String::from_utf8_lossy(&refused.source_key).into_owned(),
            kind: refused.kind.api_name(),
            cluster: cluster.to_string(),
            reason: refused.reason.to_string(),
            first_seen: rfc3339(refused.first_seen),
            last_seen: rfc3339(refused.last_seen),
            value: STANDARD.encode(&refused.value),
            serves_earlier_value: refused.kind == Kind::Cluster && has_config,
        }
    }

    /// What is wrong with a record, if anything is.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        let rejection = record.rejection.as_ref()?;
        Some(Self {
            key: record.key.to_string(),
            kind: record.key.kind.api_name(),
            cluster: record.key.cluster.to_string(),
            reason: rejection.reason.to_string(),
            first_seen: rfc3339(rejection.first_seen),
            last_seen: rfc3339(rejection.last_seen),
            value: STANDARD.encode(&record.value),
            serves_earlier_value: record.object.is_some(),
        })
    }
}
