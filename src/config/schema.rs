//! The JSON schema of the `--config` file, which is made from the options, like the file's keys.

use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value, json};

use super::layers::{CONFIG_OPTION, options};

/// Returns the JSON schema (draft 2020-12) of the config file. The keys are the options of `serve`,
/// and those that only `reflect` has. Options for tests are left out.
#[must_use]
pub fn config_schema(serve: &Command, reflect: &Command) -> Value {
    let mut properties = Map::new();
    for (command, note) in [(serve, ""), (reflect, "Only for meshkeep reflect. ")] {
        for option in options(command).filter(|option| !option.is_hide_set()) {
            let Some(long) = option.get_long().filter(|long| *long != CONFIG_OPTION) else { continue };
            properties.entry(long).or_insert_with(|| property(option, note));
        }
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Config file of meshkeep",
        "description": "File for the option --config of meshkeep serve and meshkeep reflect. Each key is a flag without its dashes.",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

/// Returns the schema of an option: one value, or also a list for an option that is repeatable.
fn property(option: &Arg, note: &str) -> Value {
    let one = value_schema(option);
    let mut property = match option.get_action() {
        ArgAction::Append if has_pairs(option) => json!({ "anyOf": [one, list_of(&one), map_of_values()] }),
        ArgAction::Append => json!({ "anyOf": [one, list_of(&one)] }),
        _ => one,
    };
    property["description"] = format!("{note}{}", option.get_help().map(ToString::to_string).unwrap_or_default()).into();
    if let ([default], false) = (option.get_default_values(), matches!(option.get_action(), ArgAction::SetTrue)) {
        let text = default.to_string_lossy();
        let number = if is_integer(option) { text.parse::<u64>().ok() } else { None };
        property["default"] = number.map_or_else(|| json!(text), |number| json!(number));
    }
    property
}

/// Returns the schema of one value. Its name in the help text shows its type.
fn value_schema(option: &Arg) -> Value {
    let names: Vec<String> = option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    match (option.get_action(), value_name(option)) {
        (ArgAction::SetTrue, _) => json!({ "type": "boolean" }),
        _ if !names.is_empty() => json!({ "enum": names }),
        _ if is_integer(option) => json!({ "type": "integer", "minimum": 0 }),
        // without a unit, YAML has a number
        (_, "TIME" | "BYTES") => json!({ "type": ["string", "integer"] }),
        _ => json!({ "type": "string" }),
    }
}

fn list_of(item: &Value) -> Value {
    json!({ "type": "array", "items": item })
}

fn map_of_values() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": ["string", "number"] } })
}

fn value_name(option: &Arg) -> &str {
    option.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str())
}

fn is_integer(option: &Arg) -> bool {
    matches!(value_name(option), "COUNT" | "ID")
}

/// Returns whether the values of an option are pairs, which the file can have as a map.
fn has_pairs(option: &Arg) -> bool {
    value_name(option) == "KEY=VALUE"
}
