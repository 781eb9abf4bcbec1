//! The settings in force.

use serde::Serialize;
use utoipa::ToSchema;

/// The settings of `meshkeep serve` that hold.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    /// Each option, in the order of the help text.
    pub(crate) items: Vec<Setting>,
}

/// An option with what holds for it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Setting {
    /// Its name, as the config file has it; behind `kvstore-opt.` that of a kvstore option.
    pub(crate) name: String,
    /// What holds: none where it is not set and has no default, several where it may be repeated.
    pub(crate) values: Vec<String>,
    /// Which layer it comes from: `flag`, `environment`, `file` or `default`.
    pub(crate) source: &'static str,
    /// Where it stands, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// What it is for.
    pub(crate) description: String,
}

impl From<&[crate::model::Setting]> for Config {
    fn from(settings: &[crate::model::Setting]) -> Self {
        let items = settings.iter().cloned().map(|crate::model::Setting { name, values, source, origin, description }| Setting {
            name,
            values,
            source: source.api_name(),
            origin,
            description,
        });
        Self { items: items.collect() }
    }
}
