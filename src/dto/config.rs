//! The settings in force.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::values::SettingSource;

/// The settings that `meshkeep serve` uses.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    /// All options, in the order of `--help`.
    pub(crate) items: Vec<Setting>,
}

/// An option with its value and where the value comes from.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Setting {
    /// Name of the option as in the config file. kvstore options have the prefix `kvstore-opt.`.
    pub(crate) name: String,
    /// Values in use. Empty if the option is not set and has no default; several if it is
    /// repeatable.
    pub(crate) values: Vec<String>,
    /// Layer that the value comes from: `flag`, `environment`, `file` or `default`.
    pub(crate) source: SettingSource,
    /// Place where the value is set, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// Purpose of the option.
    pub(crate) description: String,
}
