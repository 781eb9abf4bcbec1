//! The HTTP client of the command line: asks a running sidecar over TCP, TLS or a unix socket.
//!
//! Owns: where the sidecar is, who asks, and what a refusal means to a person. Deliberately lacks: what is asked, and how it is printed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::Failure;
use super::progress::Progress;
use crate::dto::Page;
use crate::dto::lookup::LookupRequest;
use crate::dto::problem::ProblemDocument;
use crate::model::{SecretUrl, in_words, with_bare_urls};

/// How long a connection may take: the sidecar is on this machine or near.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// How long an answer may take: a page of a list may look for 5 s, and a store that loads lets a request wait for 2 s.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// How many items one page of a list has: as many as the API allows, for the command takes them all.
const PAGE_LIMIT: &str = "10000";

/// The host that requests over a unix socket name; any loopback name is accepted.
const SOCKET_HOST: &str = "http://localhost/";

/// Where the sidecar is, and who asks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Which meshkeep")]
pub(super) struct ServerOptions {
    /// The address of a running meshkeep: http://HOST:PORT, https://HOST:PORT or unix:///path
    #[arg(
        long,
        env = "MESHKEEP_SERVER",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:9870",
        global = true
    )]
    server: String,
    /// A file with the bearer token to show
    #[arg(long, env = "MESHKEEP_TOKEN_FILE", value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// A file with the certificates of the authorities to trust, beside those of the system
    #[arg(long, env = "MESHKEEP_CA_FILE", value_name = "FILE", global = true)]
    ca_file: Option<PathBuf>,
}

/// A client for one sidecar.
#[derive(Debug)]
pub(super) struct Asker {
    client: Client,
    base: Url,
    /// The server as messages name it, without secrets.
    server: String,
}

impl Asker {
    /// Reads the files that the options name; asks nothing yet.
    pub(super) fn new(options: &ServerOptions) -> Result<Self, Failure> {
        let server = shown_server(&options.server);
        let wrong = |reason: String| Failure::usage(format!("--server {server:?} {reason}"));
        // the client asks for it also where it speaks plain HTTP; only a second one in this process would be refused
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder().connect_timeout(CONNECT_TIME_MAX).no_proxy();
        let base = match options.server.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => {
                builder = builder.unix_socket(path);
                SOCKET_HOST
            }
            Some(_) => return Err(wrong("must name an absolute path, like unix:///run/meshkeep.sock".to_owned())),
            None => options.server.as_str(),
        };
        let base = Url::parse(base).map_err(|_| wrong("is no URL: write http://HOST:PORT, or unix:///path for a socket".to_owned()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(wrong("must begin with http://, https:// or unix://".to_owned()));
        }
        let mut headers = HeaderMap::new();
        if let Some(path) = &options.token_file {
            headers.insert(AUTHORIZATION, token(path)?);
        }
        if base.scheme() == "https" {
            for certificate in authorities(options)? {
                builder = builder.add_root_certificate(certificate);
            }
        }
        let client = builder.default_headers(headers).build().map_err(|error| Failure::usage(format!("cannot make a client: {error}")))?;
        Ok(Self { client, base, server })
    }

    /// The answer to a question, as JSON.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, Failure> {
        let _progress = self.waiting();
        let request = self.client.get(self.url(path, query)?).timeout(ANSWER_TIME_MAX);
        self.json(request.send().await).await
    }

    /// The answer to a question with a body, as JSON.
    pub(super) async fn post(&self, path: &str, body: &LookupRequest) -> Result<Value, Failure> {
        let _progress = self.waiting();
        let request = self.client.post(self.url(path, &[])?).timeout(ANSWER_TIME_MAX).json(body);
        self.json(request.send().await).await
    }

    /// Whether a probe says yes, and what it says. Any status is an answer.
    pub(super) async fn probe(&self, path: &str) -> Result<(bool, String), Failure> {
        let response = self.client.get(self.url(path, &[])?).timeout(CONNECT_TIME_MAX).send().await;
        let response = response.map_err(|error| self.unreachable(error))?;
        let healthy = response.status().is_success();
        Ok((healthy, response.text().await.map_err(|error| self.unreachable(error))?))
    }

    /// All items of a list, page by page, and the position from which to follow it. Tells what of the request is probably a mistake.
    pub(super) async fn list(&self, path: &str, query: &[(&str, &str)]) -> Result<(Vec<Value>, String), Failure> {
        let (mut items, mut token) = (Vec::new(), None::<String>);
        let progress = Progress::begin(&format!("asking for {}", path.trim_start_matches("/v1/")));
        loop {
            let mut query = query.to_vec();
            query.push(("limit", PAGE_LIMIT));
            if let Some(token) = &token {
                query.push(("pageToken", token));
            }
            let page: Page = self.get(path, &query).await?;
            items.extend(page.items);
            progress.tell(format!("{} {} so far", items.len(), path.trim_start_matches("/v1/")));
            if token.is_none() {
                page.warnings.iter().for_each(|warning| super::warn(warning));
            }
            token = page.next_page_token;
            if token.is_none() {
                return Ok((items, page.meta.position));
            }
        }
    }

    /// A stream of lines of JSON that has begun.
    pub(super) async fn stream(&self, path: &str, query: &[(&str, &str)]) -> Result<Response, Failure> {
        let request = self.client.get(self.url(path, query)?).header(ACCEPT, "application/x-ndjson");
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refused(response).await) }
    }

    fn waiting(&self) -> Progress {
        Progress::begin(&format!("waiting for {}", self.server))
    }

    fn url(&self, path: &str, query: &[(&str, &str)]) -> Result<Url, Failure> {
        let mut url = self.base.join(path).map_err(|error| Failure::usage(format!("{path} is no path: {error}")))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    async fn json<T: DeserializeOwned>(&self, response: reqwest::Result<Response>) -> Result<T, Failure> {
        let response = response.map_err(|error| self.unreachable(error))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let bytes = response.bytes().await.map_err(|error| self.unreachable(error))?;
        serde_json::from_slice(&bytes).map_err(|_| Failure::unreachable(format!("{} answers, but it is no meshkeep", self.server)))
    }

    /// Why nobody answers, and what to do.
    fn unreachable(&self, error: reqwest::Error) -> Failure {
        let place = self.server.trim_start_matches("http://");
        // the URL may have a password in it
        let error = error.without_url();
        let cause = cause(&error);
        let text = if error.is_timeout() && !error.is_connect() {
            format!("{place} did not answer in time: is it very busy, or another program?")
        } else if cause.contains("InvalidContentType") {
            format!("{place} does not speak TLS: name it with http://")
        } else if cause.contains("peer certificate") {
            format!("{place} shows a certificate that cannot be trusted ({cause}): name the file of its authority with --ca-file")
        } else if error.is_connect() {
            format!("no meshkeep at {place} ({cause}): start one with `meshkeep serve`, or name another with --server")
        } else if self.base.scheme() == "http" && ["invalid HTTP version", "before message completed"].iter().any(|one| cause.contains(one))
        {
            format!("{place} does not answer in HTTP: if it serves TLS, name it with https://")
        } else {
            format!("the connection to {place} broke: {cause}")
        };
        Failure::unreachable(text)
    }

    /// What a refusal says: the detail of its problem document. Whoever has none is no meshkeep.
    async fn refused(&self, response: Response) -> Failure {
        let status = response.status();
        let Ok(ProblemDocument { detail: text, .. }) = response.json().await else {
            return Failure::unreachable(format!("{} answers {status}, and it is no meshkeep: name another with --server", self.server));
        };
        match status {
            StatusCode::NOT_FOUND => Failure::not_found(text),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::unreachable(format!("{text} (show a token with --token-file)")),
            StatusCode::BAD_REQUEST => Failure::usage(text),
            _ => Failure::unreachable(text),
        }
    }
}

/// The server as messages may name it: of a URL that has more than scheme, host and port, these alone, as any other part may be a secret.
fn shown_server(server: &str) -> String {
    let is_plain = |text: &str| text.chars().all(|character| character.is_ascii_alphanumeric() || "-._:[]".contains(character));
    match server.split_once("://") {
        Some(("unix", _)) => server.to_owned(),
        Some(_) => with_bare_urls(server.trim_end_matches('/')).into_owned(),
        None if is_plain(server) => server.to_owned(),
        None => SecretUrl::new(server).shown(),
    }
}

/// The items of an answer that is no page of a list.
pub(super) fn items(mut answer: Value) -> Vec<Value> {
    match answer.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// The innermost reason of an error, in the words of the system and without its number.
fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = in_words(innermost);
    let words = text.trim_start_matches("failed to lookup address information: ");
    // the system's begin with a capital, others with a name
    let is_system = innermost.is::<std::io::Error>();
    let mut letters = words.chars();
    match letters.next().filter(|_| is_system) {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => words.to_owned(),
    }
}

/// The header that shows a token.
fn token(path: &PathBuf) -> Result<HeaderValue, Failure> {
    let named = |reason: &str| Failure::usage(format!("--token-file {}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| named(&error.to_string()))?;
    let mut value =
        HeaderValue::from_str(&format!("Bearer {}", text.trim())).map_err(|_| named("holds no token: it must be one line of text"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The certificates to trust: the system's, and those of `--ca-file`.
fn authorities(options: &ServerOptions) -> Result<Vec<Certificate>, Failure> {
    let system = rustls_native_certs::load_native_certs().certs;
    let mut found: Vec<Certificate> = system.iter().filter_map(|certificate| Certificate::from_der(certificate).ok()).collect();
    if let Some(path) = &options.ca_file {
        let named = |reason: &dyn std::fmt::Display| Failure::usage(format!("--ca-file {}: {reason}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| named(&error))?;
        let mine = Certificate::from_pem_bundle(&bytes).map_err(|error| named(&error))?;
        if mine.is_empty() {
            return Err(named(&"holds no certificate"));
        }
        found.extend(mine);
    }
    Ok(found)
}
