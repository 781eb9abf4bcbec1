//! OpenAPI 3.0.3, derived from the 3.1 document for tools that do not support 3.1.

use serde_json::{Value, json};

/// Converts the features that meshkeep's 3.1 document uses to OpenAPI 3.0.3.
pub(super) fn convert_document(mut document: Value) -> Value {
    document["openapi"] = json!("3.0.3");
    if let Some(license) = document["info"]["license"].as_object_mut() {
        license.remove("identifier");
        license.insert("url".into(), json!("https://www.apache.org/licenses/LICENSE-2.0"));
    }
    convert_value(&mut document);
    document
}

fn convert_value(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(convert_value),
        Value::Object(object) => {
            // `oneOf` of a schema and null becomes that schema, nullable
            let or_null = |choices: &Value| choices.as_array().is_some_and(|choices| choices.iter().any(|choice| choice["type"] == "null"));
            if object.get("oneOf").is_some_and(or_null)
                && let Some(Value::Array(choices)) = object.remove("oneOf")
            {
                let schema = choices.into_iter().filter(|choice| choice["type"] != "null").collect();
                object.insert("allOf".into(), Value::Array(schema));
                object.insert("nullable".into(), json!(true));
                // a nullable schema needs a type
                object.insert("type".into(), json!("object"));
            }
            // a reference must have no sibling members
            if object.len() > 1
                && let Some(reference) = object.remove("$ref")
            {
                object.insert("allOf".into(), json!([{ "$ref": reference }]));
            }
            if let Some(Value::Array(examples)) = object.remove("examples") {
                object.insert("example".into(), examples.into_iter().next().unwrap_or_default());
            }
            object.values_mut().for_each(convert_value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
