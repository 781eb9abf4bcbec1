//! OpenAPI 3.0.3, derived from the 3.1 document for tools that do not support 3.1.

use serde_json::{Map, Value, json};

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
            make_nullable_members_optional(object);
            // A reference must have no sibling members, so its description is left out. Inside an
            // `allOf`, swagger-codegen 3 would make an empty class of it.
            if let Some(reference) = object.remove("$ref") {
                *object = Map::from_iter([("$ref".to_owned(), reference)]);
            }
            if let Some(Value::Array(examples)) = object.remove("examples") {
                object.insert("example".into(), examples.into_iter().next().unwrap_or_default());
            }
            object.values_mut().for_each(convert_value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Makes each member that is a reference or null a plain reference, and optional.
///
/// In 3.0, a reference cannot be nullable. Clients read null as a missing optional member; with the
/// reference in a nullable `allOf`, swagger-codegen 3 would not read the object.
fn make_nullable_members_optional(schema: &mut Map<String, Value>) {
    let mut optional = Vec::new();
    for (name, member) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        let choices = member["oneOf"].as_array().map(Vec::as_slice).unwrap_or_default();
        if choices.iter().any(|choice| choice["type"] == "null")
            && let Some(reference) = choices.iter().find(|choice| choice["$ref"].is_string()).cloned()
        {
            *member = reference;
            optional.push(name.clone());
        }
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !optional.iter().any(|optional| *name == *optional));
    }
}
