//! A setting in force, and where it comes from.

/// One option with what holds for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The option's name, as the config file has it.
    pub name: String,
    /// What holds: none where it is not set and has no default, several where it may be repeated. No secrets.
    pub values: Vec<String>,
    /// Which layer it comes from.
    pub source: SettingSource,
    /// Where it stands, in words; `None` for a default.
    pub origin: Option<String>,
    /// What it is for.
    pub description: String,
}

/// The layers of settings, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingSource {
    /// The command line.
    Flag,
    /// An environment variable.
    Environment,
    /// The `--config` file.
    File,
    /// Nothing says anything else.
    Default,
}

impl SettingSource {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Flag, Self::Environment, Self::File, Self::Default];

    /// Its name in the API.
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
