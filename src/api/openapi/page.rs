//! The OpenAPI document as an HTML page, at `/docs`.
//!
//! It is generated from the document, with its own style sheet and script, so that a browser loads
//! nothing from other servers. Only the filter and the `send` buttons need the script.

use std::fmt::Write as _;
use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::schemas::enum_values;

pub(crate) const STYLE: &str = include_str!("page/style.css");

/// Script of the filter and the `send` buttons.
pub(crate) const SCRIPT: &str = include_str!("page/script.js");

/// Style sheet and script of the page, as elements.
const HEAD: &str = "<link rel=\"stylesheet\" href=\"/docs/style.css\">\n<script src=\"/docs/script.js\" defer></script>\n";

/// Methods in the order in which the page lists them.
const METHODS: [&str; 2] = ["get", "post"];

/// Returns the page.
pub(crate) fn page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| write_page(&super::build()))
}

fn write_page(document: &Value) -> String {
    let mut out = String::new();
    add(&mut out, format_args!("<p>{}</p>\n", prose(&document["info"]["description"])));
    out.push_str(
        "<p>Machine-readable: <a href=\"/openapi.json\">OpenAPI 3.1</a>, <a href=\"/openapi-3.0.json\">OpenAPI 3.0</a>. \
         <a href=\"/problems\">Problem types</a>.</p>\n\
         <div class=\"tools\"><input id=\"filter\" type=\"search\" placeholder=\"filter\" aria-label=\"filter\">\n\
         <label>token <input id=\"token\" type=\"password\" autocomplete=\"off\" placeholder=\"only with --token-file\"></label></div>\n",
    );
    for tag in list(&document["tags"]) {
        add(&mut out, format_args!("<section><h2 id=\"{0}\">{0}</h2>\n<p>{1}</p>\n", text(&tag["name"]), prose(&tag["description"])));
        for (path, item) in members(&document["paths"]) {
            for (method, operation) in METHODS.iter().filter_map(|method| Some((method, item.get(method)?))) {
                if list(&operation["tags"]).contains(&tag["name"]) {
                    write_operation(&mut out, path, method, operation);
                }
            }
        }
        out.push_str("</section>\n");
    }
    out.push_str("<section><h2 id=\"schemas\">schemas</h2>\n");
    for (name, schema) in members(&document["components"]["schemas"]) {
        write_schema(&mut out, name, schema);
    }
    out.push_str("</section>\n");
    crate::page::document("The API", HEAD, &out)
}

fn write_operation(out: &mut String, path: &str, method: &str, operation: &Value) {
    let (id, path_html, upper_method) = (text(&operation["operationId"]), escaped(path), method.to_uppercase());
    let summary = prose(&operation["summary"]);
    add(
        out,
        format_args!("<details id=\"{id}\"><summary><b>{upper_method}</b> <code>{path_html}</code> <span>{summary}</span></summary>\n"),
    );
    if operation["description"].is_string() {
        add(out, format_args!("<p>{}</p>\n", prose(&operation["description"])));
    }
    add(out, format_args!("<form data-method=\"{upper_method}\" data-path=\"{path_html}\">\n"));
    let parameters = list(&operation["parameters"]);
    if !parameters.is_empty() {
        out.push_str("<table><tr><th>parameter</th><th>type</th><th>value</th><th>description</th></tr>\n");
        for parameter in parameters {
            write_parameter(out, parameter);
        }
        out.push_str("</table>\n");
    }
    if let Some(schema) = content(&operation["requestBody"]) {
        add(out, format_args!("<p>body: {} <textarea name=\"body\" rows=\"4\" aria-label=\"body\"></textarea></p>\n", type_of(schema)));
    }
    // a stream does not end, so it opens in a new tab
    let is_stream = operation["responses"]["200"]["content"].get("text/event-stream").is_some();
    add(
        out,
        format_args!(
            "<button{}>send</button> <code class=\"curl\"></code>\n<pre hidden tabindex=\"0\"></pre>\n</form>\n",
            if is_stream { " data-open" } else { "" }
        ),
    );
    out.push_str("<table><tr><th>status</th><th>answer</th><th>description</th></tr>\n");
    for (status, response) in members(&operation["responses"]) {
        let answer = content(response).map(type_of).unwrap_or_default();
        add(out, format_args!("<tr><td>{}</td><td>{answer}</td><td>{}</td></tr>\n", escaped(status), prose(&response["description"])));
    }
    out.push_str("</table>\n</details>\n");
}

fn write_parameter(out: &mut String, parameter: &Value) {
    let (name, location) = (text(&parameter["name"]), text(&parameter["in"]));
    let is_required = parameter["required"] == true;
    let example = match &parameter["example"] {
        Value::Array(items) => items.first().map(plain).unwrap_or_default(),
        example => plain(example),
    };
    add(
        out,
        format_args!(
            "<tr><td><code>{name}</code>{}</td><td>{}</td><td><input name=\"{name}\" aria-label=\"{name}\" data-in=\"{location}\" placeholder=\"{example}\"></td><td>{}</td></tr>\n",
            if is_required { " <b>*</b>" } else { "" },
            type_of(&parameter["schema"]),
            prose(&parameter["description"])
        ),
    );
}

fn write_schema(out: &mut String, name: &str, schema: &Value) {
    let name = escaped(name);
    add(
        out,
        format_args!(
            "<details id=\"schema-{name}\"><summary><code>{name}</code> <span>{}</span></summary>\n",
            prose(&schema["description"])
        ),
    );
    if let Some(properties) = schema["properties"].as_object() {
        let required = list(&schema["required"]);
        out.push_str("<table><tr><th>member</th><th>type</th><th>description</th></tr>\n");
        for (member, property) in properties {
            let mark = if required.iter().any(|name| name == member) { " <b>*</b>" } else { "" };
            let (kind, description) = (type_of(property), prose(&property["description"]));
            add(out, format_args!("<tr><td><code>{}</code>{mark}</td><td>{kind}</td><td>{description}</td></tr>\n", escaped(member)));
        }
        out.push_str("</table>\n");
    }
    let choices: Vec<String> = list(&schema["oneOf"]).iter().map(type_of).collect();
    if !choices.is_empty() {
        add(out, format_args!("<p>One of {}</p>\n", choices.join(", ")));
    }
    for choice in enum_values(schema) {
        add(out, format_args!("<code>{}</code> ", plain(choice)));
    }
    for example in list(&schema["examples"]).iter().filter(|example| !example.is_string()) {
        let example = serde_json::to_string_pretty(example).unwrap_or_default();
        add(out, format_args!("<pre tabindex=\"0\">{}</pre>\n", escaped(&example)));
    }
    out.push_str("</details>\n");
}

/// Returns the type of a schema as HTML, with links to the named schemas.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        let name = escaped(name);
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    let choices: Vec<String> = list(&schema["oneOf"]).iter().map(type_of).collect();
    match schema["type"].as_str() {
        _ if !choices.is_empty() => choices.join(" or "),
        Some("array") => format!("list of {}", type_of(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => format!("map of {}", type_of(&schema["additionalProperties"])),
        Some(name) => match schema["format"].as_str().filter(|format| *format != "int64") {
            Some(format) => format!("{} ({})", escaped(name), escaped(format)),
            None => escaped(name),
        },
        None => String::new(),
    }
}

/// Returns the schema of the first media type of a request or response.
fn content(message: &Value) -> Option<&Value> {
    message["content"].as_object()?.values().next().map(|media| &media["schema"])
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

/// Returns a text of the document, escaped.
fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

/// Returns a value as a user would type it, escaped.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| escaped(&value.to_string()), escaped)
}

/// Returns a text of the document as HTML. Text between backticks becomes `<code>`.
fn prose(value: &Value) -> String {
    let escaped = text(value);
    let parts: Vec<&str> = escaped.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return escaped;
    }
    parts.iter().enumerate().map(|(index, part)| if index % 2 == 1 { format!("<code>{part}</code>") } else { (*part).to_owned() }).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    // writing to a String cannot fail
    let _ = out.write_fmt(text);
}
