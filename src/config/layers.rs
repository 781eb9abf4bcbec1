//! The layers below the command line: the environment, and below it the `--config` file.
//!
//! There is no second list of options. The values of a layer become arguments of the same command,
//! so their names, formats and error messages are the same as those of the flags.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_yaml_ng::Value;

use super::UsageError;
use crate::files::read_bounded;
use crate::model::{SettingSource, suggest_word};
use crate::yaml::{self, Limits};

/// Prefix of meshkeep's environment variables.
const ENVIRONMENT_PREFIX: &str = "MESHKEEP_";

/// Variables of commands other than `serve` (`cli/queries/api_client.rs`).
const OTHER_VARIABLES: [&str; 4] = ["MESHKEEP_SERVER", "MESHKEEP_CA_FILE", "MESHKEEP_CLIENT_CERT", "MESHKEEP_CLIENT_KEY"];

/// Option that names the file. It is the only option that the file cannot have.
pub(super) const CONFIG_OPTION: &str = "config";

/// Maximum size of the config file in bytes, far more than all options together need.
const CONFIG_FILE_SIZE_BYTES_MAX: u64 = 1024 * 1024;

/// Values of one option in a layer.
pub(super) struct LayerValue {
    arguments: Vec<OsString>,
    pub(super) source: SettingSource,
    /// Location of the value, human-readable.
    pub(super) origin: String,
}

/// Values by the long name of the option.
type Layer = BTreeMap<String, LayerValue>;

/// Parsed arguments, and the values that do not come from the command line.
pub(super) struct LayeredArguments {
    pub(super) matches: ArgMatches,
    pub(super) layer_values: Layer,
}

/// Parses the arguments of a command. Missing options are completed from the environment, then from
/// the file.
///
/// # Errors
/// Returns a [`UsageError`] for invalid arguments, and also for `--help`, which clap returns as an
/// error.
pub(super) fn parse_layered(
    command: &Command,
    arguments: &[OsString],
    environment: impl Fn(&str) -> Option<String>,
) -> Result<LayeredArguments, UsageError> {
    let given = command.clone().try_get_matches_from(arguments)?;
    let mut layers: Layer =
        unset_options(command, &given).filter_map(|option| from_environment(option, &environment).transpose()).collect::<Result<_, _>>()?;
    let matches = parse_with(command, arguments, &layers)?;
    let Some(path) = matches.get_one::<PathBuf>(CONFIG_OPTION) else { return Ok(LayeredArguments { matches, layer_values: layers }) };
    for (name, below) in read_file(command, path)? {
        if unset_options(command, &given).any(|option| option.get_long() == Some(&name)) {
            layers.entry(name).or_insert(below);
        }
    }
    let matches = parse_with(command, arguments, &layers)?;
    Ok(LayeredArguments { matches, layer_values: layers })
}

/// Returns the options that the command line does not set.
fn unset_options<'a>(command: &'a Command, given: &'a ArgMatches) -> impl Iterator<Item = &'a Arg> {
    options(command).filter(|option| given.value_source(option.get_id().as_str()) != Some(ValueSource::CommandLine))
}

/// Returns the options that a layer may set.
pub(crate) fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let settable = |option: &&Arg| match option.get_action() {
        ArgAction::Set | ArgAction::Append | ArgAction::SetTrue => option.get_long().is_some(),
        _ => false,
    };
    command.get_arguments().filter(settable)
}

/// Parses the command line, with the arguments of the layers inserted before its own. An error
/// about a layer's value says where the value comes from and which values are valid. It does not
/// show the value, which may be a misplaced secret, because the output goes to the logs of the
/// parent process.
fn parse_with(command: &Command, arguments: &[OsString], layers: &Layer) -> Result<ArgMatches, UsageError> {
    let (name, rest) = arguments.split_at(arguments.len().min(1));
    let below = layers.values().flat_map(|given| &given.arguments);
    let all = name.iter().chain(below).chain(rest);
    command.clone().try_get_matches_from(all).map_err(|error| {
        let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return error.into() };
        let long = shown.trim_start_matches("--").split([' ', '=']).next().unwrap_or_default();
        let Some(given) = layers.get(long) else { return error.into() };
        UsageError::Value { origin: given.origin.clone(), option: shown.clone(), reason: valid_values(&error) }
    })
}

/// Describes valid values: the list of them, or the message of the option's own parser, which
/// repeats no value.
fn valid_values(error: &clap::Error) -> String {
    match (error.get(ContextKind::ValidValue), error.source()) {
        (_, Some(parser_error)) => parser_error.to_string(),
        (Some(ContextValue::Strings(values)), None) if !values.is_empty() => format!("must be one of {}", values.join(", ")),
        (_, None) => "cannot be used".to_owned(),
    }
}

/// Reads an option from its variable. Several values of a repeatable option are separated by
/// commas.
fn from_environment(option: &Arg, environment: impl Fn(&str) -> Option<String>) -> Result<Option<(String, LayerValue)>, UsageError> {
    let Some(long) = option.get_long() else { return Ok(None) };
    let variable = variable_name(long);
    let Some(text) = environment(&variable).filter(|text| !text.is_empty()) else { return Ok(None) };
    let values = match option.get_action() {
        ArgAction::Append => text.split(',').map(|value| value.trim().to_owned()).collect(),
        _ => vec![text],
    };
    let origin = format!("environment variable {variable}");
    Ok(Some((long.to_owned(), to_layer_value(option, values, SettingSource::Environment, origin)?)))
}

/// Returns the variables that have meshkeep's prefix but that no command knows. The service links
/// that Kubernetes sets for a Service called meshkeep (`MESHKEEP_PORT_9870_TCP_ADDR`,
/// `MESHKEEP_SERVICE_HOST`) are left out, because they are not mistakes.
pub(super) fn unknown_variables<'a>(command: &Command, variables: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let known: Vec<String> = options(command).filter_map(Arg::get_long).map(variable_name).collect();
    let is_unknown = move |name: &&str| {
        let Some(rest) = name.strip_prefix(ENVIRONMENT_PREFIX) else { return false };
        let is_link = rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_");
        !is_link && !OTHER_VARIABLES.contains(name) && known.iter().all(|known| known != name)
    };
    variables.filter(is_unknown)
}

/// Returns the variable of an option, such as `MESHKEEP_CLUSTER_NAME` for `cluster-name`.
fn variable_name(long: &str) -> String {
    format!("{ENVIRONMENT_PREFIX}{}", long.to_uppercase().replace('-', "_"))
}

/// Reads the config file. Every key must be an option's long name.
fn read_file(command: &Command, path: &Path) -> Result<Layer, UsageError> {
    let refuse = |reason: String| UsageError::ConfigFile { path: path.to_owned(), reason };
    let bytes = read_bounded(path, CONFIG_FILE_SIZE_BYTES_MAX).map_err(|error| refuse(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("not UTF-8".to_owned()))?;
    yaml::check(&text, &Limits::CONFIGURATION).map_err(|error| refuse(error.to_string()))?;
    let keys: Option<BTreeMap<String, Value>> = serde_yaml_ng::from_str(&text).map_err(|error| refuse(not_yaml(&error)))?;
    let mut layer = Layer::new();
    for (key, value) in keys.unwrap_or_default() {
        let option = options(command).find(|option| option.get_long() == Some(&key) && key != CONFIG_OPTION);
        let option = option.ok_or_else(|| refuse(unknown_key(command, &key)))?;
        let values = to_strings(&value).ok_or_else(|| refuse(format!("{key} must be a value or a list of values")))?;
        if values.len() > 1 && !matches!(option.get_action(), ArgAction::Append) {
            return Err(refuse(format!("{key} accepts one value")));
        }
        if !values.is_empty() {
            layer.insert(key.clone(), to_layer_value(option, values, SettingSource::File, format!("key {key} of {}", path.display()))?);
        }
    }
    Ok(layer)
}

/// Describes a key that no option has. Names the most similar one.
fn unknown_key(command: &Command, key: &str) -> String {
    let known = options(command).filter_map(Arg::get_long).filter(|long| *long != CONFIG_OPTION);
    let suggestion = suggest_word(key, known).map_or_else(|| "; keys".to_owned(), |known| format!(", did you mean {known}? Keys"));
    format!("there is no key {key:?}{suggestion} are the flags without their dashes")
}

/// Describes a file that is not a YAML mapping. It does not use the parser's message, which may
/// quote the content.
fn not_yaml(error: &serde_yaml_ng::Error) -> String {
    let location = error.location().map(|position| format!("check line {}, column {}", position.line(), position.column()));
    format!("not a YAML mapping with one key per flag: {}", location.as_deref().unwrap_or("check its end"))
}

/// Converts a scalar, a list of scalars, or a map of scalars to strings. The entries of a map
/// become `key=value` (for `kvstore-opt`).
fn to_strings(value: &Value) -> Option<Vec<String>> {
    let scalar = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(on) => Some(on.to_string()),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => None,
    };
    match value {
        Value::Null => Some(Vec::new()),
        Value::Sequence(values) => values.iter().map(scalar).collect(),
        Value::Mapping(pairs) => pairs.iter().map(|(key, value)| Some(format!("{}={}", scalar(key)?, scalar(value)?))).collect(),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Tagged(_) => scalar(value).map(|value| vec![value]),
    }
}

/// Converts values to the arguments that a user would type. A switch becomes its flag if the value
/// is true, and no argument if it is false.
fn to_layer_value(option: &Arg, values: Vec<String>, source: SettingSource, origin: String) -> Result<LayerValue, UsageError> {
    let long = option.get_long().unwrap_or_default();
    let arguments = if !matches!(option.get_action(), ArgAction::SetTrue) {
        values.into_iter().map(|value| format!("--{long}={value}").into()).collect()
    } else {
        match values.first().map(String::as_str) {
            Some("true") => vec![format!("--{long}").into()],
            Some("false") => Vec::new(),
            _ => return Err(UsageError::NotASwitch { origin }),
        }
    };
    Ok(LayerValue { arguments, source, origin })
}
