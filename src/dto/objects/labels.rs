//! The labels of an identity, as a JSON object of strings.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::IdentityLabels;

/// An identity's labels, shared with the mirror, so that an answer does not copy them.
#[derive(Debug, Clone)]
pub(crate) struct LabelsOfIdentity(pub(crate) IdentityLabels);

impl Serialize for LabelsOfIdentity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter())
    }
}

impl<'de> Deserialize<'de> for LabelsOfIdentity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, String>::deserialize(deserializer).map(|labels| Self(labels.into()))
    }
}
