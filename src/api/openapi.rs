//! The OpenAPI document: collected by utoipa, then brought into the form that every generator reads (docs/http.md §3.3).
//!
//! Flat schemas, no null but where an answer says null, 64-bit integers, every status listed, errors under both JSON types. The
//! 3.0 twin is derived from it mechanically, so that the two cannot differ.

use std::sync::OnceLock;

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::events::WatchEvent;
use super::problem::ProblemDocument;

/// What utoipa cannot collect from the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "meshkeep",
        description = "A warm mirror of Cilium ClusterMesh state. Every answer says where it comes from and how old it is.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(WatchEvent, ProblemDocument)),
    tags(
        (name = "status", description = "meshkeep itself"),
        (name = "clusters", description = "The remote clusters"),
        (name = "nodes", description = "Nodes"),
        (name = "services", description = "Services as each cluster exports them"),
        (name = "identities", description = "Numeric identities and their labels"),
        (name = "ipcache", description = "Addresses and what is behind them"),
        (name = "problems", description = "What looks wrong in the mesh"),
        (name = "entries", description = "The mirrored keys as they came"),
        (name = "events", description = "The change stream"),
        (name = "probes", description = "Probes")
    )
)]
struct Base;

/// The only members that may be null: "nothing covers the address" is an answer.
const NULLABLE: [(&str, &str); 3] = [("LookupAnswer", "match"), ("LookupItem", "match"), ("Explanation", "match")];

/// Errors that any route below `/v1` may answer: status and description.
const COMMON_ERRORS: [(&str, &str); 5] = [
    ("400", "A parameter is unknown or cannot be used; `detail` names it."),
    ("401", "A bearer token is needed."),
    ("421", "The `Host` of the request is not served here."),
    ("500", "meshkeep failed to answer."),
    ("503", "The store is still loading, or the answer is older than `maxAge`."),
];

/// The document in OpenAPI 3.1, as served and committed: pretty, with a newline at the end.
pub(crate) fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| pretty(&build()))
}

/// The same in OpenAPI 3.0.3.
pub(crate) fn document_30() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| pretty(&down_converted(build())))
}

fn pretty(document: &Value) -> String {
    let mut text = serde_json::to_string_pretty(document).expect("must be JSON: it was built as JSON");
    text.push('\n');
    text
}

fn build() -> Value {
    let (_, collected) = super::documented_routes().split_for_parts();
    let mut document = Base::openapi();
    document.merge(collected);
    let mut document = serde_json::to_value(document).expect("must be JSON: utoipa's types are");
    let schemas = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
    simplify(&mut document, &schemas);
    for (schema, member) in NULLABLE {
        let member = &mut document["components"]["schemas"][schema]["properties"][member];
        let reference = json!({ "$ref": "#/components/schemas/IpcacheEntry" });
        *member = json!({ "oneOf": [reference, { "type": "null" }], "description": member["description"] });
    }
    document["components"]["securitySchemes"] = json!({ "bearerAuth": { "type": "http", "scheme": "bearer" } });
    document["security"] = json!([{}, { "bearerAuth": [] }]);
    complete_paths(&mut document["paths"]);
    document
}

/// Applies to every schema: no null, 64-bit integers, no `allOf`, nothing that generators stumble over.
fn simplify(value: &mut Value, schemas: &Map<String, Value>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| simplify(item, schemas)),
        Value::Object(object) => {
            object.remove("propertyNames");
            if object.get("format").is_some_and(|format| format == "int32") {
                object.insert("format".into(), json!("int64"));
            }
            if let Some(Value::Array(types)) = object.get("type") {
                let first = types.iter().find(|one| **one != "null").cloned().unwrap_or_default();
                object.insert("type".into(), first);
            }
            if let Some(Value::Array(choices)) = object.get("oneOf").cloned()
                && let Some(Value::Object(only)) = choices.into_iter().find(|choice| choice["type"] != "null")
            {
                object.remove("oneOf");
                object.extend(only);
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

/// Writes wildcards as plain parameters and gives every operation below `/v1` the errors that it may answer.
fn complete_paths(paths: &mut Value) {
    let Value::Object(routes) = paths else { return };
    for (path, mut item) in std::mem::take(routes) {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            complete_operation(&path, operation);
        }
        routes.insert(path.replace("{*", "{"), item);
    }
}

fn complete_operation(path: &str, operation: &mut Value) {
    if !path.starts_with("/v1") {
        return;
    }
    let has_body = operation.get("requestBody").is_some();
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    let mut errors = COMMON_ERRORS.to_vec();
    if path.contains('{') {
        errors.push(("404", "There is no such thing."));
    }
    if has_body {
        errors.push(("408", "The body did not come in time."));
        errors.push(("413", "The body is too large."));
        errors.push(("415", "The body is not `application/json`."));
    }
    let problem = json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
    for (status, description) in errors {
        responses.entry(status).or_insert_with(|| json!({ "description": description }));
    }
    if let Some(bytes) = responses.get_mut("200").and_then(|response| response["content"].get_mut("application/octet-stream")) {
        bytes["schema"] = json!({ "type": "string", "format": "binary" });
    }
    for (_, response) in responses.iter_mut().filter(|(status, _)| status.as_str() >= "400") {
        response["content"] = json!({ "application/json": problem, "application/problem+json": problem });
    }
}

/// OpenAPI 3.0.3 for tools that know nothing newer: what our 3.1 document uses, said in the older way.
fn down_converted(mut document: Value) -> Value {
    document["openapi"] = json!("3.0.3");
    if let Some(license) = document["info"]["license"].as_object_mut() {
        license.remove("identifier");
    }
    convert(&mut document);
    document
}

fn convert(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(convert),
        Value::Object(object) => {
            // `oneOf` of a schema and null is that schema, nullable
            if let Some(Value::Array(choices)) = object.remove("oneOf") {
                let schema = choices.into_iter().filter(|choice| choice["type"] != "null").collect();
                object.insert("allOf".into(), Value::Array(schema));
                object.insert("nullable".into(), json!(true));
            }
            // a reference may have no neighbours
            if object.len() > 1
                && let Some(reference) = object.remove("$ref")
            {
                object.insert("allOf".into(), json!([{ "$ref": reference }]));
            }
            if let Some(Value::Array(examples)) = object.remove("examples") {
                object.insert("example".into(), examples.into_iter().next().unwrap_or_default());
            }
            object.values_mut().for_each(convert);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
