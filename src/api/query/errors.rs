//! Explanations of wrong query parameters: the given value, the valid ones, and an example.
//!
//! This code runs only if the parameters cannot be parsed. The valid values come from the OpenAPI
//! description of the parameters' struct. Parameters with their own syntax (addresses, selectors)
//! explain their errors themselves.

use serde_json::Value;
use utoipa::IntoParams;
use utoipa::openapi::path::Parameter;

use super::words::join_names;
use crate::api::problem::{Problem, ProblemCode};
use crate::model::suggest_word;

/// Description of a known parameter.
#[derive(Debug)]
struct ParameterInfo {
    name: String,
    is_required: bool,
    is_list: bool,
    /// Type in the OpenAPI document: `integer`, `boolean` or `string`.
    value: String,
    /// Maximum of an integer.
    maximum: u64,
}

impl ParameterInfo {
    fn from_openapi(parameter: &Parameter) -> Self {
        let description = serde_json::to_value(parameter).unwrap_or_default();
        let schema = &description["schema"];
        let value = match &schema["type"] {
            Value::Array(types) => types.iter().find_map(Value::as_str).unwrap_or_default().to_owned(),
            name => name.as_str().unwrap_or_default().to_owned(),
        };
        let largest = if schema["format"] == "int64" { u64::MAX } else { u32::MAX.into() };
        Self {
            name: parameter.name.clone(),
            is_required: description["required"] == Value::Bool(true) && value != "array",
            is_list: value == "array",
            value,
            maximum: schema["maximum"].as_u64().unwrap_or(largest),
        }
    }

    /// Returns the reason why a value does not have the parameter's type; `None` if it has it.
    fn type_error(&self, value: &str) -> Option<String> {
        let example = example(&self.name);
        match self.value.as_str() {
            "integer" if value.parse::<u64>().is_ok_and(|number| number <= self.maximum) => None,
            "integer" if !value.is_empty() && value.bytes().all(|digit| digit.is_ascii_digit()) => {
                Some(format!("{value} is too large: use at most {}, such as {}={example}", self.maximum, self.name))
            }
            "integer" => Some(format!("{value:?} is not a whole number: use one, such as {}={example}", self.name)),
            "boolean" if !["true", "false"].contains(&value) => {
                Some(format!("{value:?} is not a boolean: use true or false, such as {}={example}", self.name))
            }
            _ => None,
        }
    }
}

/// Returns the first error in parameters that could not be parsed as `T`.
pub(super) fn explain_error<T: IntoParams>(pairs: &[(String, String)]) -> Problem {
    let known: Vec<ParameterInfo> = T::into_params(|| None).iter().map(ParameterInfo::from_openapi).collect();
    for (index, (name, value)) in pairs.iter().enumerate() {
        let Some(parameter) = known.iter().find(|parameter| parameter.name == *name) else { return unknown_parameter(name, &known) };
        if let Some(error) = parameter.type_error(value) {
            return Problem::bad_parameter(name, error);
        }
        if !parameter.is_list && pairs[..index].iter().any(|(earlier, _)| earlier == name) {
            return Problem::bad_parameter(name, "is repeated: use it once");
        }
    }
    let missing = known.iter().find(|parameter| parameter.is_required && !pairs.iter().any(|(name, _)| *name == parameter.name));
    match missing {
        Some(ParameterInfo { name, .. }) => Problem::bad_parameter(name, format!("is missing: add it, such as {name}={}", example(name))),
        None => Problem::new(ProblemCode::BadParameter, "the parameters cannot be parsed: /openapi.json lists the parameters of each path"),
    }
}

fn unknown_parameter(name: &str, known: &[ParameterInfo]) -> Problem {
    let names: Vec<&str> = known.iter().map(|parameter| parameter.name.as_str()).collect();
    let available = format!("this path has {}", join_names(&names));
    match suggest_word(name, names.iter().copied()) {
        Some(suggestion) => {
            Problem::bad_parameter(name, format!("is not a parameter of this path, did you mean {suggestion}? {available}"))
        }
        None => Problem::bad_parameter(name, format!("is not a parameter of this path: {available}")),
    }
}

/// Returns a valid example value of a parameter.
fn example(name: &str) -> &'static str {
    match name {
        "limit" => "500",
        "search" => "cart",
        "maxAge" => "60",
        "waitSeconds" => "30",
        "identity" => "131331",
        "ip" => "10.1.2.40",
        "shared" | "snapshot" | "patch" => "true",
        _ => "…",
    }
}
