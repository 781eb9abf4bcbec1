//! The layers below the command line: the environment, and under it the `--config` file.
//!
//! Owns: which layer an option's value comes from. There is no second list of options: what a layer gives is turned into arguments
//! of the one command, so that names, forms and messages are those of the flags.

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
use crate::model::SettingSource;
use crate::yaml::{self, Limits};

/// What begins the name of every environment variable of ours.
const ENVIRONMENT_PREFIX: &str = "MESHKEEP_";

/// Variables of other commands than `serve` (`cli/asker.rs`).
const OTHER_VARIABLES: [&str; 4] = ["MESHKEEP_SERVER", "MESHKEEP_CA_FILE", "MESHKEEP_CLIENT_CERT", "MESHKEEP_CLIENT_KEY"];

/// The option that names the file; the one option that cannot stand in it.
pub(super) const CONFIG_OPTION: &str = "config";

/// Far more than all options together need: a larger file is not a config file.
const CONFIG_FILE_SIZE_BYTES_MAX: u64 = 1024 * 1024;

/// A value for one option from below the command line.
pub(super) struct Given {
    arguments: Vec<OsString>,
    pub(super) source: SettingSource,
    /// Where it stands, in words.
    pub(super) origin: String,
}

/// By the long name of the option.
type Layer = BTreeMap<String, Given>;

/// What was read, and what of it comes from below the command line.
pub(super) struct Layered {
    pub(super) matches: ArgMatches,
    pub(super) below: Layer,
}

/// Parses the arguments of one command, options that they leave out completed from the environment, then from the file.
///
/// # Errors
/// [`UsageError`], which also carries `--help`.
pub(super) fn parse_layered(
    command: &Command,
    arguments: &[OsString],
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Layered, UsageError> {
    let given = command.clone().try_get_matches_from(arguments)?;
    let mut layers: Layer =
        open_options(command, &given).filter_map(|option| from_environment(option, &environment).transpose()).collect::<Result<_, _>>()?;
    let matches = parse_with(command, arguments, &layers)?;
    let Some(path) = matches.get_one::<PathBuf>(CONFIG_OPTION) else { return Ok(Layered { matches, below: layers }) };
    for (name, below) in read_file(command, path)? {
        if open_options(command, &given).any(|option| option.get_long() == Some(&name)) {
            layers.entry(name).or_insert(below);
        }
    }
    let matches = parse_with(command, arguments, &layers)?;
    Ok(Layered { matches, below: layers })
}

/// The options that the command line does not give.
fn open_options<'a>(command: &'a Command, given: &'a ArgMatches) -> impl Iterator<Item = &'a Arg> {
    options(command).filter(|option| given.value_source(option.get_id().as_str()) != Some(ValueSource::CommandLine))
}

/// The options that a layer may give.
pub(crate) fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let settable = |option: &&Arg| match option.get_action() {
        ArgAction::Set | ArgAction::Append | ArgAction::SetTrue => option.get_long().is_some(),
        _ => false,
    };
    command.get_arguments().filter(settable)
}

/// Parses with the layers' arguments before the others; an error about one of theirs says where it stands and what would be right, and not
/// what it is: a variable or file may hold a secret at the wrong place, and what is printed here ends in the logs of whoever started us.
fn parse_with(command: &Command, arguments: &[OsString], layers: &Layer) -> Result<ArgMatches, UsageError> {
    let (name, rest) = arguments.split_at(arguments.len().min(1));
    let below = layers.values().flat_map(|given| &given.arguments);
    let all = name.iter().chain(below).chain(rest);
    command.clone().try_get_matches_from(all).map_err(|error| {
        let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return error.into() };
        let long = shown.trim_start_matches("--").split([' ', '=']).next().unwrap_or_default();
        let Some(given) = layers.get(long) else { return error.into() };
        UsageError::Value { origin: given.origin.clone(), option: shown.clone(), reason: what_is_right(&error) }
    })
}

/// What a value must be: the values that there are, or the words of the option's own parser, which repeat no value.
fn what_is_right(error: &clap::Error) -> String {
    match (error.get(ContextKind::ValidValue), error.source()) {
        (_, Some(words)) => words.to_string(),
        (Some(ContextValue::Strings(values)), None) if !values.is_empty() => format!("must be one of {}", values.join(", ")),
        (_, None) => "cannot be used".to_owned(),
    }
}

/// `cluster-name` is `MESHKEEP_CLUSTER_NAME`; several values of a repeatable option are separated by commas.
fn from_environment(option: &Arg, environment: impl Fn(&str) -> Option<String>) -> Result<Option<(String, Given)>, UsageError> {
    let Some(long) = option.get_long() else { return Ok(None) };
    let variable = variable_of(long);
    let Some(text) = environment(&variable).filter(|text| !text.is_empty()) else { return Ok(None) };
    let values = match option.get_action() {
        ArgAction::Append => text.split(',').map(|value| value.trim().to_owned()).collect(),
        _ => vec![text],
    };
    let origin = format!("environment variable {variable}");
    Ok(Some((long.to_owned(), as_arguments(option, values, SettingSource::Environment, origin)?)))
}

/// The variables that look like ours and are not. Those of Kubernetes' service links, which a Service called meshkeep makes
/// (`MESHKEEP_PORT_9870_TCP_ADDR`, `MESHKEEP_SERVICE_HOST`), are nobody's mistake.
pub(super) fn unknown_variables<'a>(command: &Command, variables: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let known: Vec<String> = options(command).filter_map(Arg::get_long).map(variable_of).collect();
    let foreign = move |name: &&str| {
        let Some(rest) = name.strip_prefix(ENVIRONMENT_PREFIX) else { return false };
        let is_link = rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_");
        !is_link && !OTHER_VARIABLES.contains(name) && known.iter().all(|known| known != name)
    };
    variables.filter(foreign)
}

/// The variable of an option: `cluster-name` is `MESHKEEP_CLUSTER_NAME`.
fn variable_of(long: &str) -> String {
    format!("{ENVIRONMENT_PREFIX}{}", long.to_uppercase().replace('-', "_"))
}

/// Reads the file: every key must be an option's long name.
fn read_file(command: &Command, path: &Path) -> Result<Layer, UsageError> {
    let refuse = |reason: String| UsageError::ConfigFile { path: path.to_owned(), reason };
    let bytes = read_bounded(path, CONFIG_FILE_SIZE_BYTES_MAX).map_err(|error| refuse(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("not UTF-8".to_owned()))?;
    yaml::check(&text, &Limits::CONFIGURATION).map_err(|error| refuse(error.to_string()))?;
    let keys: Option<BTreeMap<String, Value>> = serde_yaml_ng::from_str(&text).map_err(|error| refuse(not_yaml(&error)))?;
    let mut layer = Layer::new();
    for (key, value) in keys.unwrap_or_default() {
        let option = options(command).find(|option| option.get_long() == Some(&key) && key != CONFIG_OPTION);
        let option = option.ok_or_else(|| refuse(format!("there is no key {key:?}; keys are the flags without their dashes")))?;
        let values = values_of(&value).ok_or_else(|| refuse(format!("{key} must be a value or a list of values")))?;
        if values.len() > 1 && !matches!(option.get_action(), ArgAction::Append) {
            return Err(refuse(format!("{key} takes one value")));
        }
        if !values.is_empty() {
            layer.insert(key.clone(), as_arguments(option, values, SettingSource::File, format!("key {key} of {}", path.display()))?);
        }
    }
    Ok(layer)
}

/// Where it is no mapping of YAML. Not the parser's words, which may quote what is there.
fn not_yaml(error: &serde_yaml_ng::Error) -> String {
    let place = error.location().map(|at| format!("look at line {}, column {}", at.line(), at.column()));
    format!("not YAML with one key for each flag: {}", place.as_deref().unwrap_or("look at its end"))
}

/// A scalar, a list of scalars, or a map of scalars as `key=value` (for `kvstore-opt`).
fn values_of(value: &Value) -> Option<Vec<String>> {
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

/// What one would have typed. A switch is on, or left out.
fn as_arguments(option: &Arg, values: Vec<String>, source: SettingSource, origin: String) -> Result<Given, UsageError> {
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
    Ok(Given { arguments, source, origin })
}
