//! A setting in force and its source.

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

/// Layers of settings, in descending precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingSource {
    /// Command line.
    Flag,
    /// Environment variable.
    Environment,
    /// The `--config` file.
    File,
    /// Built-in default.
    Default,
}

impl SettingSource {
    /// All layers.
    pub const ALL: [Self; 4] = [Self::Flag, Self::Environment, Self::File, Self::Default];

    /// Returns the name in the API.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        }
    }
}
