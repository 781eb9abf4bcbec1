//! Token authentication: refusals that programs and people understand, and complete answers with
//! the token.

use reqwest::{Client, Response};

use super::sockets::{RunningServer, local, set_provider};
use crate::api::ApiOptions;

const TOKEN: &str = "open sesame";

/// `Accept` of browsers (here Firefox).
const BROWSER_ACCEPT: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

/// A meshkeep that requires a token.
async fn start_server(directory: &std::path::Path) -> RunningServer {
    let token_file = directory.join("token");
    std::fs::write(&token_file, TOKEN).unwrap();
    RunningServer::start(&[local()], &ApiOptions { token_file: Some(token_file), ..ApiOptions::default() }).await
}

fn client() -> Client {
    set_provider();
    Client::builder().no_proxy().build().unwrap()
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    answer.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn clients_without_a_token_get_advice_as_json_or_html() {
    let directory = tempfile::tempdir().unwrap();
    let running = start_server(directory.path()).await;
    let (client, url) = (client(), &running.addresses[0]);
    for path in ["/metrics", "/docsy", "/v1/nodes", "/problemsolver", "/nowhere/<script>"] {
        let ask = |accept: &str| client.get(format!("{url}{path}")).header("accept", accept).send();
        let page = ask(BROWSER_ACCEPT).await.unwrap();
        assert_eq!((page.status().as_u16(), header(&page, "www-authenticate"), header(&page, "vary")), (401, "Bearer", "Accept"), "{path}");
        assert_eq!((header(&page, "content-type"), header(&page, "cache-control")), ("text/html; charset=utf-8", "no-store"), "{path}");
        assert!(header(&page, "content-security-policy").starts_with("default-src 'none'; style-src 'self'; "));
        let text = page.text().await.unwrap();
        assert!(text.contains("<h1>A bearer token is needed</h1>") && text.contains("Authorization: Bearer"), "{text}");
        assert!(!text.contains("<script") && !text.contains("nowhere"), "the page must not contain the requested path: {text}");
        for accept in ["*/*", "application/json", "application/problem+json"] {
            let problem = ask(accept).await.unwrap();
            assert_eq!((problem.status().as_u16(), header(&problem, "www-authenticate")), (401, "Bearer"), "{path}");
            assert_eq!(header(&problem, "content-type"), "application/problem+json", "{path} {accept}");
            let problem: serde_json::Value = problem.json().await.unwrap();
            assert_eq!(problem["detail"], "send the token in the file of --token-file as `Authorization: Bearer …`");
            assert_eq!(problem["type"], "/problems/unauthorized");
        }
    }
    // pages that the `type` links to are open to refused clients
    for path in ["/problems", "/problems/unauthorized"] {
        let page = client.get(format!("{url}{path}")).send().await.unwrap();
        assert_eq!(page.status().as_u16(), 200, "{path}");
        assert!(header(&page, "content-security-policy").starts_with("default-src 'none'; style-src 'self'; "));
        let text = page.text().await.unwrap();
        assert!(text.contains("unauthorized") && text.contains("/style.css\""), "{text}");
        let elsewhere = client.get(format!("{url}{path}")).header("host", "evil.example").send().await.unwrap();
        assert_eq!(elsewhere.status().as_u16(), 421, "{path}");
    }
}

#[tokio::test]
async fn the_view_token_is_only_for_reading() {
    let directory = tempfile::tempdir().unwrap();
    let [token_file, view_token_file] = ["token", "view-token"].map(|name| Some(directory.path().join(name)));
    std::fs::write(token_file.as_ref().unwrap(), TOKEN).unwrap();
    std::fs::write(view_token_file.as_ref().unwrap(), "look").unwrap();
    let running = RunningServer::start(&[local()], &ApiOptions { token_file, view_token_file, ..ApiOptions::default() }).await;
    let (client, url) = (client(), &running.addresses[0]);
    for (token, read, batch, verify) in [(TOKEN, 200, 200, 200), ("look", 200, 200, 403), ("wrong", 401, 401, 401)] {
        let ask = async |request: reqwest::RequestBuilder| request.bearer_auth(token).send().await.unwrap();
        let lookups = client.post(format!("{url}/v1/ipcache/lookup")).header("content-type", "application/json");
        let refusal = ask(client.post(format!("{url}/v1/verifications"))).await;
        let statuses = [
            ask(client.get(format!("{url}/v1/verifications"))).await.status().as_u16(),
            ask(lookups.body(r#"{"ips":["10.1.2.40"]}"#)).await.status().as_u16(),
            refusal.status().as_u16(),
        ];
        assert_eq!(statuses, [read, batch, verify], "{token}");
        if verify == 403 {
            let problem: serde_json::Value = refusal.json().await.unwrap();
            let detail = "the token in the file of --view-token-file is only for reading: send the token in the file of --token-file";
            assert_eq!((&problem["code"], &problem["detail"]), (&"forbidden".into(), &detail.into()));
        }
    }
}

#[tokio::test]
async fn the_docs_page_needs_no_token_and_loads_nothing_external() {
    let directory = tempfile::tempdir().unwrap();
    let running = start_server(directory.path()).await;
    let (client, url) = (client(), &running.addresses[0]);
    let ask = async |path: &str| {
        let request = client.get(format!("{url}{path}")).header("accept", BROWSER_ACCEPT);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        answer.text().await.unwrap()
    };
    let page = ask("/docs").await;
    let quoted: Vec<&str> = page.split(['"', '\'']).collect();
    let links = quoted.windows(2).filter(|pair| pair[0].ends_with("href=") || pair[0].ends_with("src=")).map(|pair| pair[1]);
    let links: std::collections::BTreeSet<&str> = links.filter(|link| !link.starts_with('#')).collect();
    assert!(["/docs/style.css", "/docs/script.js"].iter().all(|asset| links.contains(asset)), "{links:?}");
    for link in links {
        assert!(link.starts_with('/') && !link.starts_with("//"), "{link} is elsewhere");
        ask(link).await;
    }
}
