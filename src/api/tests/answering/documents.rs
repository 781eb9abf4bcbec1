//! The OpenAPI document: committed as served, and equivalent in 3.0.

use std::path::Path;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::api::tests::fixture::ApiFixture;
use crate::api::{DocumentVersion, openapi_json};

#[tokio::test]
async fn the_served_documents_are_the_committed_ones() {
    let mut differing = Vec::new();
    for (name, form) in [("openapi.json", DocumentVersion::V31), ("openapi-3.0.json", DocumentVersion::V30)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi").join(name);
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        let seen = std::env::temp_dir().join(format!("meshkeep-{name}"));
        let hint = format!("openapi/{name} differs from the routes: run scripts/openapi, or copy {}", seen.display());
        if committed != openapi_json(form) {
            std::fs::write(&seen, openapi_json(form)).unwrap();
            differing.push(hint);
            continue;
        }
        let served = ApiFixture::new().get(&format!("/{name}")).await;
        assert!(served.bytes == committed.as_bytes(), "{hint}");
        assert_eq!(served.header("content-type"), "application/json");
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// Calls a function with every object in a document.
fn each_object(value: &Value, visit: &mut dyn FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| each_object(item, visit)),
        Value::Object(object) => {
            visit(object);
            object.values().for_each(|item| each_object(item, visit));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn the_3_0_document_is_equivalent_to_the_3_1_document() {
    let fixture = ApiFixture::new();
    let (new, old) = (fixture.json("/openapi.json").await, fixture.json("/openapi-3.0.json").await);
    assert_eq!((&new["openapi"], &old["openapi"]), (&json!("3.1.0"), &json!("3.0.3")));
    assert_eq!(old["info"]["license"], json!({ "name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0" }));
    let members = |document: &Value, path: &str| document.pointer(path).unwrap().as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for path in ["/paths", "/components/schemas"] {
        assert_eq!(members(&new, path), members(&old, path));
    }
    let answer = &old["components"]["schemas"]["LookupAnswer"];
    assert_eq!(answer["properties"]["match"], json!({ "$ref": "#/components/schemas/IpcacheEntry" }));
    assert!(!answer["required"].as_array().unwrap().contains(&json!("match")), "it may be null");
    each_object(&old, &mut |object| {
        let newer = ["const", "propertyNames", "prefixItems", "examples"].iter().find(|name| object.contains_key(**name));
        assert_eq!(newer, None, "{object:?}");
        // a choice of several schemas, never of one and null
        let choices = object.get("oneOf").and_then(Value::as_array).into_iter().flatten();
        assert!(choices.into_iter().all(|choice| choice["$ref"].is_string()), "{object:?}");
        // swagger-codegen 3 makes an empty class of a reference inside an `allOf`
        assert!(!object.contains_key("allOf") && !object.contains_key("nullable"), "{object:?}");
        assert!(!object.contains_key("$ref") || object.len() == 1, "{object:?}");
        assert!(!object.get("type").is_some_and(|one| one.is_array() || one == "null"), "{object:?}");
    });
}

/// Generated clients try one schema after the other: an object of one kind must not match the
/// schema of another.
#[tokio::test]
async fn a_streamed_object_matches_only_one_schema() {
    let document = ApiFixture::new().json("/openapi.json").await;
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["WatchEvent"]["properties"]["object"]["$ref"], "#/components/schemas/StreamedObject");
    let choices = schemas["StreamedObject"]["oneOf"].as_array().unwrap().iter();
    let names: Vec<&str> = choices.map(|choice| choice["$ref"].as_str().unwrap().rsplit('/').next().unwrap()).collect();
    assert_eq!(names.len(), schemas["StreamedKind"]["x-extensible-enum"].as_array().unwrap().len());
    for one in &names {
        for other in names.iter().filter(|other| *other != one) {
            let required = schemas[other]["required"].as_array().unwrap();
            let members = schemas[one]["properties"].as_object().unwrap();
            let lacks = required.iter().any(|member| !members.contains_key(member.as_str().unwrap()));
            assert!(lacks, "{one} may be taken for {other}");
        }
    }
}

#[tokio::test]
async fn the_root_page_links_only_to_existing_paths() {
    let fixture = ApiFixture::new();
    let page = String::from_utf8(fixture.get("/").await.bytes).unwrap();
    let links: Vec<String> = page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&")).collect();
    assert_eq!(links.len(), 16);
    for link in links {
        assert_ne!(fixture.get(&link).await.status.as_u16(), 404, "{link}");
    }
}

#[tokio::test]
async fn the_docs_page_is_complete_and_loads_nothing_external() {
    let fixture = ApiFixture::new();
    let answer = fixture.get("/docs").await;
    assert!(answer.header("content-security-policy").starts_with("default-src 'none'"));
    let page = String::from_utf8(answer.bytes).unwrap();
    let document = fixture.json("/openapi.json").await;
    let ids: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    each_object(&document["paths"], &mut |object| {
        if let Some(id) = object.get("operationId").and_then(Value::as_str) {
            assert_eq!(ids.iter().filter(|one| **one == id).count(), 1, "{id}");
        }
    });
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(ids.contains(&format!("schema-{name}").as_str()), "{name}");
    }
    for link in page
        .split(['\'', '"'])
        .zip(page.split(['\'', '"']).skip(1))
        .filter(|(before, _)| before.ends_with("href=") || before.ends_with("src="))
    {
        match link.1.strip_prefix('#') {
            Some(id) => assert!(ids.contains(&id), "{id}"),
            None => assert!(link.1.starts_with('/') && fixture.get(link.1).await.status.as_u16() == 200, "{}", link.1),
        }
    }
    for (asset, media_type) in [("/docs/style.css", "text/css; charset=utf-8"), ("/docs/script.js", "text/javascript; charset=utf-8")] {
        let asset = fixture.get(asset).await;
        assert_eq!(asset.header("content-type"), media_type);
        let text = String::from_utf8(asset.bytes).unwrap();
        assert!(!text.contains("//cdn") && !text.contains("http") && !text.contains("url("), "{text}");
    }
}

/// Requests whose `Accept` names HTML get the page. A file of the page never changes at its path,
/// and all files together are small.
#[tokio::test]
async fn browsers_get_the_page_and_curl_the_list_of_links() {
    let fixture = ApiFixture::new();
    let get = async |uri: &str, accept: &str| {
        let request = Request::get(uri).header("accept", accept).header("accept-encoding", "gzip").body(Body::empty()).unwrap();
        fixture.send(request).await
    };
    let links = fixture.get("/").await;
    for accept in ["*/*", "text/*"] {
        assert_eq!(
            fixture.send(Request::get("/").header("accept", accept).body(Body::empty()).unwrap()).await.bytes,
            links.bytes,
            "{accept}"
        );
    }
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let page = fixture.send(Request::get("/").header("accept", browser).body(Body::empty()).unwrap()).await;
    assert!(page.header("content-security-policy").starts_with("default-src 'none';"));
    assert_eq!((page.header("cache-control"), page.header("vary")), ("no-cache", "Accept, Accept-Encoding"));
    assert_eq!(String::from_utf8(page.bytes).unwrap(), crate::page::index());
    let mut transferred = get("/", browser).await.bytes.len();
    for asset in &crate::page::ASSETS {
        let answer = get(&format!("/assets/{}/{}", crate::page::version(), asset.name), "*/*").await;
        assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, asset.media_type()), "{}", asset.name);
        assert_eq!(answer.header("cache-control"), "public, max-age=31536000, immutable");
        transferred += answer.bytes.len();
    }
    assert!(transferred < 150_000, "{transferred} B");
    for missing in ["/assets/0123456789abcdef/main.js", "/assets/main.js", "/assets/", "/assets/../v1/nodes", "/assets/%2e%2e/v1/nodes"] {
        assert_eq!(get(missing, "*/*").await.status.as_u16(), 404, "{missing}");
    }
}
