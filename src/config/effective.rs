//! The effective settings: each option with its value and origin. Secrets are left out.

use std::borrow::Cow;

use clap::parser::ValueSource;
use clap::{Arg, Command};

use super::layers::{LayeredArguments, options};
use super::values::{KvstoreOption, KvstoreOptions};
use crate::model::{SecretUrl, Setting, SettingSource};

/// Variable of the log filter (`telemetry`), which overrides `--log-level`.
const FILTER_VARIABLE: &str = "RUST_LOG";

/// Option whose values are options themselves (`name=value`).
const KVSTORE_OPTION: &str = "kvstore-opt";

/// Options with a URL whose path may be secret.
const SECRET_URL_OPTIONS: [&str; 2] = ["on-problem", "otlp-endpoint"];

/// Lists the settings in the order of the help text. Each `--kvstore-opt` has its own entry, such
/// as `kvstore-opt.etcd.qps`.
pub(super) fn list_settings(
    command: &Command,
    layered: &LayeredArguments,
    kvstore: &[KvstoreOption],
    environment: impl Fn(&str) -> Option<String>,
) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    for option in options(command) {
        let Some(setting) = setting(option, layered) else { continue };
        if setting.name == KVSTORE_OPTION {
            settings.extend(kvstore_settings(&setting, kvstore));
        } else {
            settings.push(setting);
        }
    }
    let filter = environment(FILTER_VARIABLE).filter(|filter| !filter.is_empty());
    settings.extend(filter.map(|filter| Setting {
        name: FILTER_VARIABLE.to_owned(),
        values: vec![filter],
        source: SettingSource::Environment,
        origin: Some(format!("environment variable {FILTER_VARIABLE}")),
        description: "Log filter; takes precedence over log-level".to_owned(),
    }));
    settings
}

fn setting(option: &Arg, LayeredArguments { matches, layer_values }: &LayeredArguments) -> Option<Setting> {
    let (name, id) = (option.get_long()?, option.get_id().as_str());
    let shown =
        |value: &str| if SECRET_URL_OPTIONS.contains(&name) { SecretUrl::new(value).shown() } else { without_secrets(value).into_owned() };
    let values = matches.get_raw(id).into_iter().flatten().map(|value| shown(&value.to_string_lossy())).collect();
    let (source, origin) = match layer_values.get(name) {
        Some(given) => (given.source, Some(given.origin.clone())),
        None if matches.value_source(id) == Some(ValueSource::CommandLine) => (SettingSource::Flag, Some(format!("--{name}"))),
        None => (SettingSource::Default, None),
    };
    let description = option.get_help().map(ToString::to_string).unwrap_or_default();
    Some(Setting { name: name.to_owned(), values, source, origin, description })
}

/// Returns a setting for each kvstore option, with the default if it is not given.
fn kvstore_settings(setting: &Setting, given: &[KvstoreOption]) -> Vec<Setting> {
    let names: Vec<&str> = given.iter().map(|option| option.name()).collect();
    let table = KvstoreOptions::with(given).table();
    let to_setting = |(name, value, description): (&'static str, String, &'static str)| {
        let is_given = names.contains(&name);
        Setting {
            name: format!("{KVSTORE_OPTION}.{name}"),
            values: vec![value],
            source: if is_given { setting.source } else { SettingSource::Default },
            origin: setting.origin.clone().filter(|_| is_given),
            description: description.to_owned(),
        }
    };
    table.into_iter().map(to_setting).collect()
}

/// Removes user and password from a URL. No other option contains a secret, only paths to secrets.
fn without_secrets(value: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = value.split_once("://") else { return value.into() };
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.rsplit_once('@') {
        Some((secret, _)) => format!("{scheme}://REDACTED{}", &rest[secret.len()..]).into(),
        None => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    /// Values of the environment and the file are redacted in the same way, because only
    /// `list_settings` builds the answer of `/v1/config`.
    #[test]
    fn the_paths_of_receivers_are_redacted() {
        let command = crate::config::Settings::augment_args(Command::new("serve"));
        for name in SECRET_URL_OPTIONS {
            let arguments = ["serve".into(), format!("--{name}=https://hooks.example/T0/hunter2").into()];
            let (_, settings) = crate::config::Settings::resolve(&command, &arguments, |_| None).unwrap();
            let shown = settings.iter().find(|setting| setting.name == name).unwrap();
            assert_eq!(shown.values, ["https://hooks.example/REDACTED"]);
        }
    }

    #[test]
    fn users_and_passwords_of_urls_are_redacted() {
        let cases = [
            ("https://joe:p%40ss@hooks.example/a@b", "https://REDACTED@hooks.example/a@b"),
            ("https://token@hooks.example", "https://REDACTED@hooks.example"),
            ("unix:///run/m@keep.sock", "unix:///run/m@keep.sock"),
            ("/etc/tokens/a@b", "/etc/tokens/a@b"),
        ];
        for (value, shown) in cases {
            assert_eq!(without_secrets(value), shown);
        }
    }
}
