//! The tools: their names, arguments and requests. The schema of the arguments is derived from the
//! type that parses them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rmcp::handler::server::common::schema_for_input;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::compare::diff::{compare_table, read_regular_file};
use crate::cli::compare::history::parameter;
use crate::cli::failure::Failure;
use crate::cli::queries::api_client::ApiClient;
use crate::cli::queries::get::encoded;
use crate::dto::lookup::LookupRequest;

/// Number of items of a page if the assistant gives no limit.
const LIMIT_DEFAULT: u32 = 50;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolKind {
    Lookup,
    Explain,
    History,
    Problems,
    Diff,
    Status,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LookupArguments {
    /// IPv4 or IPv6 addresses.
    #[schemars(length(min = 1, max = 100))]
    ips: Vec<String>,
    /// Time of an earlier state: RFC 3339, or a duration before now such as 10m.
    #[serde(default)]
    at: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExplainArguments {
    /// An IPv4 or IPv6 address, or a CIDR.
    ip: String,
    /// Time of an earlier state: RFC 3339, or a duration before now such as 10m.
    #[serde(default)]
    at: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct HistoryArguments {
    /// IP, pod/NAMESPACE/NAME, identity/NUMBER, node/CLUSTER/NAME, cluster/NAME or cilium/cache/….
    subject: String,
    /// Maximum number of versions; the default is 50.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1, max = 10_000))]
    limit: u32,
    /// nextPageToken of the previous answer, for older versions.
    #[serde(default)]
    page_token: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ProblemsArguments {
    /// Only problems of these clusters.
    #[serde(default)]
    clusters: Vec<String>,
    /// Only problems of this kind, such as danglingIdentity.
    #[serde(default)]
    kind: Option<String>,
    /// Only problems of this severity.
    #[serde(default)]
    #[schemars(extend("enum" = ["critical", "warning", "info"]))]
    severity: Option<String>,
    /// Maximum number of problems; the default is 50.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1, max = 10_000))]
    limit: u32,
    /// nextPageToken of the previous answer, for the next problems.
    #[serde(default)]
    page_token: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct DiffArguments {
    /// Path of a file with the table, on the machine of this server. Give either this or table.
    #[serde(default)]
    file: Option<PathBuf>,
    /// The table itself, as text. Give either this or file.
    #[serde(default)]
    table: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StatusArguments {}

const fn default_limit() -> u32 {
    LIMIT_DEFAULT
}

/// Keywords that assistants do not need. Some refuse those that they do not know.
const OMITTED_KEYWORDS: [&str; 4] = ["$schema", "format", "nullable", "title"];

/// Simplifies a schema and those of its members. An optional argument is left out of a call, so its
/// type does not include `null`, and `null` is not its default.
fn simplify(schema: &mut JsonObject) {
    schema.retain(|keyword, value| !(OMITTED_KEYWORDS.contains(&keyword.as_str()) || keyword == "default" && value.is_null()));
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(JsonObject::values_mut).filter_map(Value::as_object_mut).for_each(simplify);
    schema.get_mut("items").and_then(Value::as_object_mut).into_iter().for_each(simplify);
}

impl ToolKind {
    /// All tools.
    pub(super) const ALL: [Self; 6] = [Self::Lookup, Self::Explain, Self::History, Self::Problems, Self::Diff, Self::Status];

    /// Returns the tool with a name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Explain => "explain",
            Self::History => "history",
            Self::Problems => "problems",
            Self::Diff => "diff",
            Self::Status => "status",
        }
    }

    const fn purpose(self) -> &'static str {
        match self {
            Self::Lookup => {
                "Look up addresses: for each, the ipcache entry that a Cilium agent would use (longest prefix), with its cluster, identity, labels, pod and node. With at, the entry at an earlier time."
            }
            Self::Explain => {
                "Explain an address or a CIDR: every entry that covers it, which one wins and why, the identity, node and services behind it, its problems, and possible reasons for a missing entry. With at, the entries, the identity and the node at an earlier time."
            }
            Self::History => {
                "List the versions of an address, a pod, an identity, a node, a cluster or a key, newest first: who had an address before, and since when. gaps names the periods that meshkeep did not observe."
            }
            Self::Problems => {
                "List what looks wrong in the mesh and in meshkeep itself, each with its severity, the affected clusters and advice."
            }
            Self::Diff => {
                "Compare a table of one Cilium agent with the mirror: what the agent lacks (missing), has in addition (additional) or has with another value (different), with the likely reasons. The table is the output of `cilium-dbg bpf ipcache list -o json`, `cilium-dbg ip list -o json`, `cilium-dbg identity list -o json` or `cilium-dbg node list -o json`."
            }
            Self::Status => {
                "Show the state of meshkeep: its version, its store, the number of clusters in each phase, and the number of objects."
            }
        }
    }

    fn schema(self) -> Arc<JsonObject> {
        let schema = match self {
            Self::Lookup => schema_for_input::<LookupArguments>(),
            Self::Explain => schema_for_input::<ExplainArguments>(),
            Self::History => schema_for_input::<HistoryArguments>(),
            Self::Problems => schema_for_input::<ProblemsArguments>(),
            Self::Diff => schema_for_input::<DiffArguments>(),
            Self::Status => schema_for_input::<StatusArguments>(),
        };
        // fails only for a type that is not an object
        let mut schema = schema.map(Arc::unwrap_or_clone).unwrap_or_default();
        simplify(&mut schema);
        // some assistants need this member, even if there are no arguments
        schema.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
        Arc::new(schema)
    }

    /// Returns the description of the tool for assistants.
    pub(super) fn description(self) -> Tool {
        // only `diff` reads a file of this machine, and nothing outside of the mesh
        let annotations = ToolAnnotations::new().read_only(true).open_world(false);
        Tool::new(self.name(), self.purpose(), self.schema()).with_annotations(annotations)
    }

    /// Sends the requests of the tool. Returns the JSON of the API.
    pub(super) async fn call(self, client: &ApiClient, arguments: JsonObject) -> Result<Value, Failure> {
        match self {
            Self::Lookup => lookup(client, self.parse(arguments)?).await,
            Self::Explain => {
                let ExplainArguments { ip, at } = self.parse(arguments)?;
                let at: Vec<(&str, &str)> = at.iter().map(|at| ("at", at.as_str())).collect();
                client.get(&format!("/v1/explain/{}", encoded(&ip)), &at).await
            }
            Self::History => history(client, self.parse(arguments)?).await,
            Self::Problems => problems(client, self.parse(arguments)?).await,
            Self::Diff => diff(client, self.parse(arguments)?).await,
            Self::Status => {
                let StatusArguments {} = self.parse(arguments)?;
                client.get("/v1/status", &[]).await
            }
        }
    }

    fn parse<T: DeserializeOwned>(self, arguments: JsonObject) -> Result<T, Failure> {
        serde_json::from_value(Value::Object(arguments))
            .map_err(|error| Failure::usage(format!("the arguments of {} cannot be used: {error}", self.name())))
    }
}

async fn lookup(client: &ApiClient, arguments: LookupArguments) -> Result<Value, Failure> {
    let LookupArguments { ips, at } = arguments;
    let at = at.iter().map(|at| ("at", at.as_str()));
    if let [ip] = ips.as_slice() {
        let query: Vec<(&str, &str)> = at.chain([("ip", ip.as_str())]).collect();
        return client.get("/v1/ipcache/lookup", &query).await;
    }
    client.post("/v1/ipcache/lookup", &at.collect::<Vec<_>>(), &LookupRequest { ips: ips.clone() }).await
}

async fn history(client: &ApiClient, arguments: HistoryArguments) -> Result<Value, Failure> {
    let limit = arguments.limit.to_string();
    let mut query = vec![parameter(&arguments.subject), ("limit", &limit)];
    query.extend(arguments.page_token.iter().map(|token| ("pageToken", token.as_str())));
    client.get("/v1/history", &query).await
}

async fn problems(client: &ApiClient, arguments: ProblemsArguments) -> Result<Value, Failure> {
    let ProblemsArguments { clusters, kind, severity, limit, page_token } = arguments;
    let limit = limit.to_string();
    let mut query = vec![("limit", limit.as_str())];
    query.extend(clusters.iter().map(|name| ("cluster", name.as_str())));
    let others = [("kind", &kind), ("severity", &severity), ("pageToken", &page_token)];
    query.extend(others.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))));
    client.get("/v1/problems", &query).await
}

/// Compares a table. A path is always that of a file: standard input carries the protocol.
async fn diff(client: &ApiClient, arguments: DiffArguments) -> Result<Value, Failure> {
    let (shown, (bytes, time)) = match arguments {
        DiffArguments { file: Some(path), table: None } => {
            let named = path.clone();
            // a file of a network share may take long
            let table = tokio::task::spawn_blocking(move || read_regular_file(&named)).await?;
            let table = table.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
            (path, table)
        }
        DiffArguments { file: None, table: Some(text) } => (PathBuf::from("table"), (text.into_bytes(), SystemTime::now())),
        DiffArguments { .. } => return Err(Failure::usage("give exactly one of file and table")),
    };
    let (report, nothing_compared) = compare_table(client, &shown, &bytes, time).await?;
    nothing_compared.map_or_else(|| Ok(serde_json::to_value(report)?), Err)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schemas_name_exactly_the_arguments() {
        let schema = |tool: ToolKind| Value::Object(tool.schema().as_ref().clone());
        for tool in ToolKind::ALL {
            let schema = schema(tool);
            assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)), "{schema}");
            let text = schema.to_string();
            assert!(["$schema", "null", "\"format\"", "\"title\""].iter().all(|part| !text.contains(part)), "{text}");
            for argument in schema["properties"].as_object().unwrap().values() {
                assert!(!argument["description"].as_str().unwrap().contains('\n') && argument["type"].is_string(), "{argument}");
            }
        }
        let lookup = schema(ToolKind::Lookup);
        assert_eq!(lookup["required"], json!(["ips"]));
        assert_eq!(lookup["properties"]["ips"]["minItems"], 1);
        assert_eq!(lookup["properties"]["at"]["type"], "string");
        let explain = schema(ToolKind::Explain);
        assert_eq!((&explain["required"], &explain["properties"]["at"]["type"]), (&json!(["ip"]), &json!("string")));
        let problems = schema(ToolKind::Problems);
        assert_eq!(problems["required"], Value::Null);
        assert_eq!(problems["properties"]["severity"]["enum"], json!(["critical", "warning", "info"]));
        let limit = &problems["properties"]["limit"];
        assert_eq!(
            (&limit["type"], &limit["minimum"], &limit["default"], &limit["format"]),
            (&json!("integer"), &json!(1), &json!(50), &Value::Null)
        );
        assert_eq!(schema(ToolKind::History)["required"], json!(["subject"]));
        assert!(schema(ToolKind::History)["properties"]["pageToken"].is_object());
    }

    #[test]
    fn an_unknown_argument_is_refused() {
        let arguments = json!({"ip": "10.1.2.40", "cluster": "paris"}).as_object().unwrap().clone();
        let error = ToolKind::Explain.parse::<ExplainArguments>(arguments).unwrap_err();
        assert_eq!(error.to_string(), "the arguments of explain cannot be used: unknown field `cluster`, expected `ip` or `at`");
    }
}
