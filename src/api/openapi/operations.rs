//! Completes the operations: common errors, headers and media types of all routes.

use serde_json::{Map, Value, json};

use crate::api::render::answer_properties::{AnswerProperties, MediaType, RouteProperties};
use crate::api::render::tag_basis::TagBasis;

/// Errors of every route below `/v1`: status and description.
const COMMON_ERRORS: [(&str, &str); 6] = [
    ("400", "A parameter is unknown or cannot be used; `detail` names it."),
    ("401", "A bearer token is needed."),
    ("406", "`Accept` lists no content type that the path has; `detail` lists those."),
    ("421", "meshkeep does not accept the `Host` of the request."),
    ("500", "meshkeep failed to answer."),
    ("503", "The store is still loading, or the answer is older than `maxAge`."),
];

/// Headers of errors: status, name and description.
const ERROR_HEADERS: [(&str, &str, &str); 3] = [
    ("401", "WWW-Authenticate", "`Bearer`."),
    ("429", "Retry-After", "Seconds to wait before the next request."),
    ("503", "Retry-After", "Seconds to wait before the next request."),
];

/// Description of the `ETag` header.
const ETAG_DESCRIPTION: &str =
    "Tag of the answer's content, without ages. Send it as `If-None-Match` to get `304` while nothing has changed.";

/// Description of the `If-None-Match` header.
const IF_NONE_MATCH: &str = "The `ETag` of an earlier answer. If nothing has changed since, the answer is `304`.";

/// Description of lists as NDJSON.
const LINES_DESCRIPTION: &str =
    "With `Accept: application/x-ndjson`, the answer has all items without pages, one per line, and `meta` in the last line.";

/// Example of a list as NDJSON.
const LINES_EXAMPLE: &str = "{\"name\":\"worker-1\",\"cluster\":\"paris\"}\n{\"meta\":{\"position\":\"v1.00000000deadbeef.42\"}}\n";

/// Example of a list of versions as NDJSON, whose last line has its gaps.
const VERSION_LINES_EXAMPLE: &str = concat!(
    r#"{"kind":"node","key":"cilium/cache/nodes/v1/paris/worker-1","from":{"firstSeenAt":"2026-11-26T14:03:00Z"}}"#,
    "\n",
    r#"{"complete":false,"gaps":[{"cluster":"paris","kind":"node","from":"2026-11-26T15:00:00Z"}],"since":"2026-11-26T14:03:00Z","#,
    r#""meta":{"position":"v1.00000000deadbeef.42"}}"#,
    "\n"
);

/// Converts wildcards in paths to plain parameters, and completes every operation below `/v1`.
pub(super) fn complete(paths: &mut Value, properties: &RouteProperties) {
    let Value::Object(routes) = paths else { return };
    for (path, mut item) in std::mem::take(routes) {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            complete_operation(&path, properties.get(&path).copied().unwrap_or(AnswerProperties::FIXED), operation);
        }
        routes.insert(path.replace("{*", "{"), item);
    }
}

fn complete_operation(path: &str, properties: AnswerProperties, operation: &mut Value) {
    // Probes always answer in plain text and accept empty parameters. progenitor supports only
    // one type of error per operation.
    if !path.starts_with("/v1") {
        return;
    }
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        forbid_empty(&mut parameter["schema"]);
    }
    let has_body = operation.get("requestBody").is_some();
    if !has_body && properties.tag_basis != TagBasis::None {
        add_tag(operation);
    }
    if properties.media_types.contains(&MediaType::Lines) {
        let example = if path == "/v1/history" { VERSION_LINES_EXAMPLE } else { LINES_EXAMPLE };
        describe_lines(operation, properties.media_types.contains(&MediaType::Json).then_some(example));
    }
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    let mut errors = COMMON_ERRORS.to_vec();
    if path.contains('{') {
        errors.push(("404", "There is no such object."));
    }
    if has_body {
        errors.push(("408", "The body did not arrive in time."));
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
    for (status, response) in responses.iter_mut().filter(|(status, _)| status.as_str() >= "400") {
        response["content"] = json!({ "application/json": problem, "application/problem+json": problem });
        if let Some((_, name, description)) = ERROR_HEADERS.iter().find(|(error_status, ..)| error_status == status) {
            let schema = if *name == "Retry-After" { json!({ "type": "integer", "format": "int64" }) } else { json!({ "type": "string" }) };
            response["headers"] = json!({ *name: { "description": description, "schema": schema } });
        }
    }
}

/// Describes NDJSON, which lists and the change stream also answer with. It is not a second media
/// type of the answer: generators would then return either type, or request the wrong one. Lists
/// have an example.
fn describe_lines(operation: &mut Value, example: Option<&str>) {
    operation["x-ndjson"] = json!({ "mediaType": MediaType::Lines.as_str() });
    if let Some(example) = example {
        operation["x-ndjson"]["example"] = json!(example);
        let description = operation["description"].as_str().map_or_else(String::new, |text| format!("{text}\n"));
        operation["description"] = json!(description + LINES_DESCRIPTION);
    }
}

/// Adds `ETag` to the answer, `If-None-Match` to the parameters, and the answer `304`.
fn add_tag(operation: &mut Value) {
    let tag = json!({ "ETag": { "description": ETAG_DESCRIPTION, "schema": { "type": "string" } } });
    if let Some(answer) = operation["responses"].get_mut("200") {
        answer["headers"]["ETag"] = tag["ETag"].clone();
    }
    operation["responses"]["304"] = json!({ "description": "Nothing has changed since the answer with this `ETag`.", "headers": tag });
    let if_none_match = json!({
        "name": "If-None-Match", "in": "header", "description": IF_NONE_MATCH, "required": false, "schema": { "type": "string" }
    });
    match operation.get_mut("parameters").and_then(Value::as_array_mut) {
        Some(parameters) => parameters.push(if_none_match),
        None => operation["parameters"] = json!([if_none_match]),
    }
}

/// Sets `minLength`: empty parameters are refused.
fn forbid_empty(schema: &mut Value) {
    let schema = if schema["type"] == "array" { &mut schema["items"] } else { schema };
    if schema["type"] == "string" {
        schema["minLength"] = json!(1);
    }
}
