//! A setting in force and its source.

use crate::model::api_enum::api_enum;

/// One option with its current value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Name of the option in the config file.
    pub name: String,
    /// Current values: none if the option is not set and has no default, several if it is
    /// repeatable. Secrets are left out.
    pub values: Vec<String>,
    /// Layer that the value comes from.
    pub source: SettingSource,
    /// Human-readable location of the value; `None` for a default.
    pub origin: Option<String>,
    /// Purpose of the option.
    pub description: String,
}

api_enum! {
    /// Layer that a setting comes from, in order of precedence.
    pub enum SettingSource {
        /// Command line.
        Flag = "flag",
        /// Environment variable.
        Environment = "environment",
        /// The `--config` file.
        File = "file",
        /// Built-in default.
        Default = "default",
    }
}
