//! The labels of an identity, as an object of texts.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::IdentityLabels;

/// An identity's labels, shared with the mirror: those of an answer are no copy.
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
