//! The OpenAPI document: collected by utoipa, then simplified for generators
//! (docs/develop/http.md §3.3).
//!
//! [`schemas`] simplifies the schemas, [`operations`] completes the operations, [`examples`] adds
//! an example to each schema and parameter, [`openapi_30`] derives the 3.0 document, and [`page()`]
//! is the document as HTML.
//!
//! Schemas are flat and integers have 64 bits. Only the members in [`NULLABLE`] may be null. Every
//! status is listed, and errors have both JSON media types. An answer has one media type, because
//! generators treat several as a choice of types.

mod examples;
mod openapi_30;
mod operations;
mod page;
mod schemas;

use std::sync::OnceLock;

use serde_json::{Value, json};
use utoipa::OpenApi;

pub(crate) use page::{SCRIPT, STYLE, page};

use crate::dto::problem::ProblemDocument;
use crate::dto::values::{ConflictFilter, MetaDetail, NeverRead, OnExpired};

/// Parts of the document that utoipa cannot collect from the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "meshkeep",
        description = "A persistent mirror of Cilium ClusterMesh state. Every answer has its source and its age.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(name = "The developers of meshkeep"),
    ),
    servers((url = "/", description = "The meshkeep that served this document")),
    components(schemas(ProblemDocument, ConflictFilter, MetaDetail, NeverRead, OnExpired)),
    tags(
        (name = "status", description = "meshkeep itself"),
        (name = "clusters", description = "The remote clusters"),
        (name = "nodes", description = "Nodes"),
        (name = "services", description = "Services as each cluster exports them"),
        (name = "identities", description = "Numeric identities and their labels"),
        (name = "ipcache", description = "Addresses with their identities, hosts and pods"),
        (name = "history", description = "Earlier versions of objects"),
        (name = "problems", description = "Findings: problems that meshkeep noticed in the mesh"),
        (name = "entries", description = "The mirrored keys with their raw bytes"),
        (name = "events", description = "The change stream"),
        (name = "probes", description = "Probes")
    )
)]
struct DocumentBase;

/// The only members that may be null. Null is an answer there: no entry covers the address.
const NULLABLE: [(&str, &str); 3] = [("LookupAnswer", "match"), ("LookupItem", "match"), ("Explanation", "match")];

/// Returns the OpenAPI document in either version, as committed in `openapi/`: indented, with a
/// newline at the end.
#[must_use]
pub fn openapi_json(form: DocumentVersion) -> &'static str {
    match form {
        DocumentVersion::V31 => document(),
        DocumentVersion::V30 => document_30(),
    }
}

/// Version of the OpenAPI document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentVersion {
    /// OpenAPI 3.1.0.
    V31,
    /// OpenAPI 3.0.3, for tools that do not support 3.1.
    V30,
}

/// Returns the document in OpenAPI 3.1, as served and committed: indented, with a newline at the
/// end.
pub(crate) fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| pretty(&build()))
}

/// Returns the document in OpenAPI 3.0.3.
pub(crate) fn document_30() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| pretty(&openapi_30::convert_document(build())))
}

fn pretty(document: &Value) -> String {
    let mut text = serde_json::to_string_pretty(document).expect("must be JSON: it was built as JSON");
    text.push('\n');
    text
}

fn build() -> Value {
    let routes = super::documented_routes();
    let (_, collected) = routes.router.split_for_parts();
    let mut document = DocumentBase::openapi();
    document.merge(collected);
    let mut document = serde_json::to_value(document).expect("must be JSON: utoipa's types are");
    let collected = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
    schemas::simplify(&mut document, &collected);
    for (schema, member) in NULLABLE {
        let member = &mut document["components"]["schemas"][schema]["properties"][member];
        let reference = json!({ "$ref": "#/components/schemas/IpcacheEntry" });
        *member = json!({ "oneOf": [reference, { "type": "null" }], "description": member["description"] });
    }
    document["components"]["securitySchemes"] = json!({ "bearerAuth": { "type": "http", "scheme": "bearer" } });
    document["security"] = json!([{}, { "bearerAuth": [] }]);
    schemas::prune(&mut document, &["WatchEvent"]);
    schemas::open_growing_enums(&mut document["components"]["schemas"]);
    operations::complete(&mut document["paths"], &routes.properties);
    examples::add(&mut document);
    document
}
