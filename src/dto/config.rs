//! The settings in force.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The settings of `meshkeep serve` that hold.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    /// Each option, in the order of the help text.
    pub(crate) items: Vec<Setting>,
}

/// An option with what holds for it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Setting {
    /// Its name, as the config file has it; behind `kvstore-opt.` that of a kvstore option.
    pub(crate) name: String,
    /// What holds: none where it is not set and has no default, several where it may be repeated.
    pub(crate) values: Vec<String>,
    /// Which layer it comes from: `flag`, `environment`, `file` or `default`.
    pub(crate) source: Cow<'static, str>,
    /// Where it stands, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// What it is for.
    pub(crate) description: String,
}
