//! Examples for all schemas and parameters. `scripts/openapi-examples` takes them from answers of
//! the sample mesh.

use serde_json::{Map, Value, json};

use super::schemas::enum_values;

/// JSON object with `schemas` by name, and `parameters` by name or by path and name.
const EXAMPLES: &str = include_str!("examples.json");

/// Adds the examples. A test requires one for each schema and parameter.
pub(super) fn add(document: &mut Value) {
    let examples: Value = serde_json::from_str(EXAMPLES).expect("must be JSON: a test reads it");
    for (name, schema) in document["components"]["schemas"].as_object_mut().into_iter().flatten() {
        // the first value of a closed set is its example
        let first = enum_values(schema).first().cloned();
        if let Some(example) = first.or_else(|| examples["schemas"].get(name).cloned()) {
            schema["examples"] = json!([example]);
        }
    }
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap_or_default();
                let known = &examples["parameters"];
                if let Some(example) = known.get(format!("{path} {name}")).or_else(|| known.get(name)).cloned() {
                    let repeats = parameter["schema"]["type"] == "array";
                    parameter["example"] = if repeats { json!([example]) } else { example };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::api::openapi::build;

    #[test]
    fn every_schema_and_parameter_has_an_example() {
        let document = build();
        let hint = "run scripts/openapi-examples, or write one into src/api/openapi/examples.json";
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            assert!(schema["examples"].is_array(), "{name} has no example: {hint}");
        }
        for (path, item) in document["paths"].as_object().unwrap() {
            for operation in item.as_object().unwrap().values() {
                for parameter in operation["parameters"].as_array().into_iter().flatten() {
                    assert!(!parameter["example"].is_null(), "{path} has a parameter {} without an example: {hint}", parameter["name"]);
                }
            }
        }
    }
}
