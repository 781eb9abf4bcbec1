//! Access of web pages of other origins.

use reqwest::{Client, Method, RequestBuilder};

use super::sockets::{RunningServer, local, set_provider};
use crate::api::ApiOptions;

const TOKEN: &str = "open sesame";
const LISTED: &str = "https://portal.example";

async fn start_server(directory: &std::path::Path, cors_origins: &[&str]) -> RunningServer {
    let token_file = directory.join("token");
    std::fs::write(&token_file, TOKEN).unwrap();
    let cors_origins = cors_origins.iter().map(|origin| (*origin).to_owned()).collect();
    RunningServer::start(&[local()], &ApiOptions { token_file: Some(token_file), cors_origins, ..ApiOptions::default() }).await
}

/// Sends a request. Returns its status, and the values of some headers of the answer.
async fn ask<const COUNT: usize>(request: RequestBuilder, headers: [&str; COUNT]) -> (u16, [String; COUNT]) {
    let answer = request.send().await.unwrap();
    let value = |name: &str| {
        let values = answer.headers().get_all(name).iter().map(|value| value.to_str().unwrap());
        values.collect::<Vec<_>>().join(", ").to_lowercase()
    };
    (answer.status().as_u16(), headers.map(value))
}

fn client() -> Client {
    set_provider();
    Client::builder().no_proxy().build().unwrap()
}

#[tokio::test]
async fn only_pages_of_listed_origins_may_read_answers() {
    let directory = tempfile::tempdir().unwrap();
    let running = start_server(directory.path(), &[LISTED, "http://localhost:3000"]).await;
    let (client, url) = (client(), format!("{}/v1/nodes", running.addresses[0]));
    let preflight = |origin: &str| {
        let request = client.request(Method::OPTIONS, &url).header("origin", origin).header("access-control-request-method", "GET");
        request.header("access-control-request-headers", "authorization")
    };
    let names = ["access-control-allow-origin", "access-control-allow-methods", "access-control-max-age"];
    let allowed = |origin: &str| [origin, "get,head,post", "7200"].map(str::to_owned);
    assert_eq!(ask(preflight(LISTED), names).await, (200, allowed(LISTED)), "a preflight request has no token");
    assert_eq!(ask(preflight("http://localhost:3000"), names).await, (200, allowed("http://localhost:3000")));
    let (_, [headers, credentials]) = ask(preflight(LISTED), ["access-control-allow-headers", "access-control-allow-credentials"]).await;
    assert!(headers.contains("authorization") && headers.contains("last-event-id") && credentials.is_empty(), "{headers} {credentials}");
    for origin in ["https://evil.example", "https://portal.example.evil.example", "http://portal.example", "null"] {
        let (_, [allowed]) = ask(preflight(origin), ["access-control-allow-origin"]).await;
        assert_eq!(allowed, "", "{origin}");
    }
    let get = |origin: &str, token: &str| client.get(&url).header("origin", origin).bearer_auth(token);
    let names = ["access-control-allow-origin", "access-control-expose-headers"];
    let (status, [allowed, exposed]) = ask(get(LISTED, TOKEN), names).await;
    assert!((status, allowed.as_str()) == (200, LISTED) && exposed.contains("etag"), "{status} {allowed} {exposed}");
    let (status, [allowed, _]) = ask(get(LISTED, "wrong"), names).await;
    assert_eq!((status, allowed.as_str()), (401, LISTED), "the page can read why");
    let (status, [allowed, _]) = ask(get("https://evil.example", TOKEN), names).await;
    assert_eq!((status, allowed.as_str()), (200, ""), "the browser withholds the answer");
    let (_, [vary]) = ask(get(LISTED, TOKEN), ["vary"]).await;
    assert!(vary.contains("origin") && vary.contains("accept"), "{vary}");
}

#[tokio::test]
async fn without_listed_origins_no_answer_is_for_other_origins() {
    let directory = tempfile::tempdir().unwrap();
    let running = start_server(directory.path(), &[]).await;
    let (client, url) = (client(), format!("{}/v1/nodes", running.addresses[0]));
    let preflight = client.request(Method::OPTIONS, &url).header("origin", LISTED).header("access-control-request-method", "GET");
    assert_eq!(ask(preflight, ["access-control-allow-origin"]).await, (401, [String::new()]));
    let get = client.get(&url).header("origin", LISTED).bearer_auth(TOKEN);
    assert_eq!(ask(get, ["access-control-allow-origin"]).await, (200, [String::new()]));
}

/// Without a token, a browser sends such a request of any page.
#[tokio::test]
async fn only_own_and_listed_pages_may_do_more_than_read() {
    let cors_origins = vec![LISTED.to_owned()];
    let running = RunningServer::start(&[local()], &ApiOptions { cors_origins, ..ApiOptions::default() }).await;
    let (client, own) = (client(), running.addresses[0].as_str());
    let post = |path: &str| client.post(format!("{own}{path}"));
    let verify = |origin: &str| post("/v1/verifications").header("origin", origin);
    let batch = |origin: &str| {
        post("/v1/ipcache/lookup").header("origin", origin).header("content-type", "application/json").body(r#"{"ips":["10.1.2.40"]}"#)
    };
    let own_tls = own.replace("http://", "https://");
    for origin in [own, &own_tls, LISTED] {
        assert_eq!((ask(verify(origin), []).await.0, ask(batch(origin), []).await.0), (200, 200), "{origin}");
    }
    for origin in ["https://evil.example", "http://portal.example", "http://127.0.0.1:1", "http://127.0.0.1", "null", ""] {
        assert_eq!((ask(verify(origin), []).await.0, ask(batch(origin), []).await.0), (403, 403), "{origin}");
        let read = client.get(format!("{own}/v1/verifications")).header("origin", origin);
        assert_eq!(ask(read, []).await.0, 200, "{origin}: the browser withholds the answer");
    }
    let problem: serde_json::Value = verify("https://evil.example").send().await.unwrap().json().await.unwrap();
    let detail = "web pages of the origin \"https://evil.example\" may not send this request: allow this origin with --cors-origin";
    assert_eq!((&problem["code"], &problem["detail"]), (&"forbidden".into(), &detail.into()));
    // a program, and meshkeep's page behind a proxy that changes the host
    assert_eq!(ask(post("/v1/verifications"), []).await.0, 200);
    for (site, expected) in [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)] {
        assert_eq!(ask(verify("https://meshkeep.example").header("sec-fetch-site", site), []).await.0, expected, "{site}");
        assert_eq!(ask(post("/v1/verifications").header("sec-fetch-site", site), []).await.0, expected, "{site}");
        assert_eq!(ask(verify(LISTED).header("sec-fetch-site", site), []).await.0, 200, "{site}");
        // the port is the same, but not the scheme
        assert_eq!(ask(verify(&own_tls).header("sec-fetch-site", site), []).await.0, expected, "{site}");
    }
}

#[tokio::test]
async fn only_pages_of_listed_origins_may_frame_the_page() {
    let both = [LISTED, "http://a.example"];
    for (listed, expected) in
        [(&both[..0], "frame-ancestors 'none'; "), (&both[..], "frame-ancestors https://portal.example http://a.example; ")]
    {
        let frame_ancestors = listed.iter().map(|origin| (*origin).to_owned()).collect();
        let running = RunningServer::start(&[local()], &ApiOptions { frame_ancestors, ..ApiOptions::default() }).await;
        let page = client().get(&running.addresses[0]).header("accept", "text/html");
        let (status, [policy]) = ask(page, ["content-security-policy"]).await;
        assert_eq!(status, 200);
        assert!(policy.contains(expected) && policy.contains("require-trusted-types-for 'script'"), "{policy}");
    }
}
