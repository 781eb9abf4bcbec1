//! Simplification of utoipa's schemas to a form that every generator supports.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Enums of answers to which a newer version may add values.
///
/// Their schemas are texts with `x-extensible-enum` (Zalando's RESTful API guidelines, rule 112): a
/// client that is generated from an `enum` may refuse a whole answer because of one new value.
const GROWING_ENUMS: [&str; 19] = [
    "BackendSource",
    "ConflictReason",
    "EntrySource",
    "EventReason",
    "FindingKind",
    "HintKind",
    "ImpactEffect",
    "ImpactKind",
    "Kind",
    "Origin",
    "Phase",
    "ProblemCode",
    "ResetReason",
    "SelectionRule",
    "SettingSource",
    "StoreState",
    "StreamedKind",
    "Verdict",
    "VersionEnd",
];

/// Replaces `enum` with `x-extensible-enum` in the schemas of enums that may grow.
pub(super) fn open_growing_enums(schemas: &mut Value) {
    for name in GROWING_ENUMS {
        if let Some(schema) = schemas.get_mut(name).and_then(Value::as_object_mut)
            && let Some(values) = schema.remove("enum")
        {
            schema.insert("x-extensible-enum".into(), values);
        }
    }
}

/// Returns the values of an enum's schema; empty for other schemas.
pub(super) fn enum_values(schema: &Value) -> &[Value] {
    ["enum", "x-extensible-enum"].iter().find_map(|member| schema[*member].as_array()).map(Vec::as_slice).unwrap_or_default()
}

/// Simplifies every schema: removes null and keywords that generators do not support, makes
/// integers 64-bit, and merges each `allOf` into one object.
pub(super) fn simplify(value: &mut Value, schemas: &Map<String, Value>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| simplify(item, schemas)),
        Value::Object(object) => {
            object.remove("propertyNames");
            if object.get("format").is_some_and(|format| format == "int32") {
                object.insert("format".into(), json!("int64"));
                // unsigned, at most 32 bits: generators treat int32 as signed, so the bound must be
                // explicit
                if object.get("minimum").is_some_and(|minimum| *minimum == 0) {
                    object.entry("maximum").or_insert(json!(u32::MAX));
                }
            }
            if let Some(Value::Array(types)) = object.get("type") {
                let first = types.iter().find(|one| **one != "null").cloned().unwrap_or_default();
                object.insert("type".into(), first);
            }
            // a choice between one schema and null becomes that schema, and the member is optional;
            // a choice between several schemas remains
            let choices = object.get("oneOf").and_then(Value::as_array).into_iter().flatten();
            let choices: Vec<Value> = choices.filter(|choice| choice["type"] != "null").cloned().collect();
            if let [Value::Object(only)] = choices.as_slice() {
                object.remove("oneOf");
                object.extend(only.clone());
            }
            if let Some(Value::Array(parts)) = object.remove("allOf") {
                flatten(object, &parts, schemas);
            }
            object.values_mut().for_each(|item| simplify(item, schemas));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Merges the parts of an `allOf` (a flattened struct and its own members) into one object schema.
fn flatten(object: &mut Map<String, Value>, parts: &[Value], schemas: &Map<String, Value>) {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts {
        let name = part["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let part = name.and_then(|name| schemas.get(name)).unwrap_or(part);
        properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    object.insert("type".into(), json!("object"));
    object.insert("properties".into(), properties.into());
    object.insert("required".into(), required.into());
}

/// Removes schemas that nothing refers to, because `flatten` merged their members into other
/// schemas.
pub(super) fn prune(document: &mut Value, keep: &[&str]) {
    loop {
        let mut used: BTreeSet<String> = keep.iter().map(|name| (*name).to_owned()).collect();
        references(document, &mut used);
        let Some(schemas) = document["components"]["schemas"].as_object_mut() else { return };
        let before = schemas.len();
        schemas.retain(|name, _| used.contains(name));
        if schemas.len() == before {
            return;
        }
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(object) => {
            found.extend(object.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()).map(str::to_owned));
            object.values().for_each(|item| references(item, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{GROWING_ENUMS, enum_values};
    use crate::api::openapi::build;

    #[test]
    fn every_enum_says_whether_it_may_grow() {
        // parameters, and answers whose values are complete by their meaning; a new type of event
        // is only sent to clients that request it
        const FIXED: [&str; 12] = [
            "Affinity",
            "BackendState",
            "ConflictFilter",
            "EventType",
            "IdentityScope",
            "MetaDetail",
            "NeverRead",
            "OnExpired",
            "Severity",
            "SyncMode",
            "TrafficPolicy",
            "UnknownAge",
        ];
        let document = build();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas.iter().filter(|(_, schema)| !enum_values(schema).is_empty()) {
            let may_grow = GROWING_ENUMS.contains(&name.as_str());
            assert_ne!(may_grow, FIXED.contains(&name.as_str()), "{name} must be in GROWING_ENUMS or in FIXED");
            assert_eq!((schema.get("enum").is_some(), schema.get("x-extensible-enum").is_some()), (!may_grow, may_grow), "{name}");
        }
        assert!(GROWING_ENUMS.iter().chain(&FIXED).all(|name| schemas.contains_key(*name)));
    }

    /// Texts in backquotes after a colon, or at the beginning of a description, are the values of a
    /// member.
    #[test]
    fn every_enumerated_text_is_an_api_enum() {
        // free text from a source
        const OPEN: [&str; 10] = [
            "Port.protocol",
            "ExportPort.protocol",
            "GlobalPort.protocol",
            "NodeAddress.type",
            "SlicePort.protocol",
            "EndpointSlice.addressType",
            "GlobalExports.sessionAffinity",
            "GlobalExports.type",
            "ServiceExport.sessionAffinity",
            "ServiceExport.type",
        ];
        let document = build();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            for (member, property) in schema["properties"].as_object().into_iter().flatten() {
                let description = property["description"].as_str().unwrap_or_default();
                let lists = |text: &str| text.starts_with('`') && (text.contains("`, `") || text.contains("` or `"));
                let is_listed = lists(description) || description.split(": ").any(lists);
                let is_open = OPEN.contains(&format!("{name}.{member}").as_str());
                assert!(property["type"] != "string" || !is_listed || is_open, "{name}.{member} is a plain string: {description}");
            }
        }
    }
}
