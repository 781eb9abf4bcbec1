//! Members that have one of a fixed set of values. A newer server may send more values than this
//! version knows.

pub(crate) mod closed;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::model::ApiEnum;

/// A value of an [`ApiEnum`], or a text that only a newer server knows. The schema has the values
/// of the enum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Open<T> {
    Known(T),
    Unknown(String),
}

// utoipa names the schema of a generic type after the type and all its parameters; the schema of an
// alias gets only the name from `ToSchema::name`
macro_rules! open {
    ($($name:ident)+) => { $(pub(crate) type $name = Open<closed::$name>;)+ };
}

open! {
    Affinity BackendSource BackendState ConflictFilter ConflictReason EntrySource EventReason EventType FindingKind HintKind
    IdentityScope ImpactEffect ImpactKind Kind MetaDetail NeverRead OnExpired Origin Phase ProblemCode ResetReason SelectionRule
    SettingSource Severity StoreState StreamedKind SyncMode TrafficPolicy UnknownAge Verdict VersionEnd
}

impl<T: ApiEnum> Open<T> {
    /// Returns the name in the API.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Known(value) => value.api_name(),
            Self::Unknown(text) => text,
        }
    }

    /// Returns the value; `None` if it is not in the set.
    pub(crate) fn known(&self) -> Option<T> {
        if let Self::Known(value) = self { Some(*value) } else { None }
    }

    /// Returns the value, or the text that is not in the set.
    pub(crate) fn into_known(self) -> Result<T, String> {
        match self {
            Self::Known(value) => Ok(value),
            Self::Unknown(text) => Err(text),
        }
    }
}

impl<T: ApiEnum> From<T> for Open<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}

impl<T: ApiEnum> From<String> for Open<T> {
    fn from(text: String) -> Self {
        T::from_api_name(&text).map_or(Self::Unknown(text), Self::Known)
    }
}

impl<T: ApiEnum> PartialEq<T> for Open<T> {
    fn eq(&self, other: &T) -> bool {
        self.known() == Some(*other)
    }
}

impl<T: ApiEnum> fmt::Display for Open<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl<T: ApiEnum> Serialize for Open<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de, T: ApiEnum> Deserialize<'de> for Open<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

impl<T: ApiEnum> PartialSchema for Open<T> {
    fn schema() -> RefOr<Schema> {
        let values = T::values().map(ApiEnum::api_name);
        ObjectBuilder::new().schema_type(Type::String).description(Some(T::DESCRIPTION)).enum_values(Some(values)).into()
    }
}

impl<T: ApiEnum> ToSchema for Open<T> {
    fn name() -> Cow<'static, str> {
        T::SCHEMA.into()
    }
}
