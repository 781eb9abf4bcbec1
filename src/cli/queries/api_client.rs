//! HTTP client of the command line: queries a running sidecar over TCP, TLS or a unix socket.
//!
//! It authenticates the command and turns error answers into messages for the user. The server is
//! not trusted: answers are limited in bytes and in time, and redirects to other servers are not
//! followed.

mod certificates;
pub(in crate::cli) mod connection_words;
pub(in crate::cli) mod lists;
mod server_certificate;

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use clap::Args;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use crate::cli::failure::Failure;
use crate::cli::terminal::past_notes::describe_last_version;
use crate::cli::terminal::progress::ProgressLine;
use crate::cli::terminal::route_commands::name_commands;
use crate::dto::lookup::LookupRequest;
use crate::dto::problem::ProblemDocument;
use crate::files::{SMALL_FILE_BYTES_MAX, read_argument};
use crate::model::{SecretUrl, readable_error, redact_urls};

/// Maximum time to connect: the sidecar is on this machine or near it.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum time for an answer. The server may search for 5 s for a page of a list, and delays a
/// request by 2 s while its store is loading.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum bytes of an answer or of one event of a stream. A page of a list has 4 MiB plus one
/// item. The largest item has a value of 10 MiB, the size at which etcd warns of a large request
/// (`embed.recommendedMaxRequestBytes`), and each byte of it is at most six characters of JSON.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Maximum bytes of a problem document. Its detail repeats a part of the request, whose URL has at
/// most 64 KiB.
const PROBLEM_BYTES_MAX: usize = 1 << 20;

/// Maximum number of redirects of one request: a proxy in front of a meshkeep needs one.
const REDIRECTS_MAX: usize = 3;

/// Header of a server that serves a dump, with the time of the dump.
const DUMP_HEADER: &str = "meshkeep-dump";

/// Base URL of requests over a unix socket; the sidecar accepts any loopback name.
const SOCKET_HOST: &str = "http://localhost/";

/// Address of the sidecar, and the credentials of the command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub(in crate::cli) struct ServerOptions {
    /// The address of a running meshkeep: http://HOST:PORT, https://HOST:PORT or unix:///path
    #[arg(long, env = "MESHKEEP_SERVER", hide_env_values = true, value_name = "URL", default_value = "http://127.0.0.1:9870")]
    server: String,
    /// File with the bearer token
    #[arg(long, env = "MESHKEEP_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with certificates of authorities to trust, in addition to those of the system
    #[arg(long, env = "MESHKEEP_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// File with the client certificate
    #[arg(long, env = "MESHKEEP_CLIENT_CERT", value_name = "FILE")]
    client_cert: Option<PathBuf>,
    /// File with the private key of the client certificate
    #[arg(long, env = "MESHKEEP_CLIENT_KEY", value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// Option that has the address, for messages.
    #[arg(skip = "--server")]
    option: &'static str,
}

/// Client for one sidecar.
#[derive(Debug)]
pub(in crate::cli) struct ApiClient {
    client: Client,
    base: Url,
    /// Address of the server without secrets, and the option that has it, for messages.
    server: String,
    option: &'static str,
    /// Whether the client presents a certificate.
    has_certificate: bool,
    /// Completed after the command has reported that the answers come from a dump.
    dump_note: Once,
    /// True if the client prints no progress, no notes and no warnings.
    is_silent: bool,
    /// True if messages keep the API's paths instead of naming commands.
    keeps_paths: bool,
}

impl ServerOptions {
    /// Returns the same options for another server, whose address is the value of `option`.
    pub(in crate::cli) fn with_server(&self, server: &str, option: &'static str) -> Self {
        Self { server: server.to_owned(), option, ..self.clone() }
    }
}

impl ApiClient {
    /// Reads the files that the options name. Sends no request yet.
    pub(in crate::cli) fn new(options: &ServerOptions) -> Result<Self, Failure> {
        let server = redacted_server(&options.server);
        let option = options.option;
        let invalid_server = |reason: String| Failure::usage(format!("{option} {server:?} {reason}"));
        // reqwest needs a provider even for plain HTTP; the call fails only if the process has one
        // already
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut builder = Client::builder().connect_timeout(CONNECT_TIME_MAX).redirect(redirects()).no_proxy();
        let base = match options.server.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => {
                builder = builder.unix_socket(path);
                SOCKET_HOST
            }
            Some(_) => return Err(invalid_server("must have an absolute path, such as unix:///run/meshkeep.sock".to_owned())),
            None => options.server.as_str(),
        };
        let base =
            Url::parse(base).map_err(|_| invalid_server("is not a URL: use http://HOST:PORT, or unix:///path for a socket".to_owned()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(invalid_server("must begin with http://, https:// or unix://".to_owned()));
        }
        let mut headers = HeaderMap::new();
        if let Some(path) = &options.token_file {
            headers.insert(AUTHORIZATION, read_token(path)?);
        }
        let identity = certificates::identity(options.client_cert.as_deref(), options.client_key.as_deref())?;
        let has_certificate = identity.is_some() && base.scheme() == "https";
        if base.scheme() == "https" {
            for certificate in certificates::authorities(options.ca_file.as_deref())? {
                builder = builder.add_root_certificate(certificate);
            }
            builder = identity.into_iter().fold(builder, reqwest::ClientBuilder::identity);
        }
        let client =
            builder.default_headers(headers).build().map_err(|error| Failure::usage(format!("cannot create an HTTP client: {error}")))?;
        Ok(Self { client, base, server, option, has_certificate, dump_note: Once::new(), is_silent: false, keeps_paths: false })
    }

    /// Returns the client without progress lines, notes and warnings. A completion must not print
    /// them over the line that the user types.
    pub(in crate::cli) fn silent(self) -> Self {
        Self { is_silent: true, ..self }
    }

    /// Returns the client for an assistant: silent, and with the API's paths in messages.
    pub(in crate::cli) fn for_assistant(self) -> Self {
        Self { is_silent: true, keeps_paths: true, ..self }
    }

    /// Requests `path` and returns the answer's JSON as `T`.
    pub(in crate::cli) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, Failure> {
        self.parse(&self.fetch(path, query).await?)
    }

    /// Requests `path` and returns the bytes of the answer.
    pub(super) async fn fetch(&self, path: &str, query: &[(&str, &str)]) -> Result<Vec<u8>, Failure> {
        let _progress = self.start_progress(&format!("waiting for {}", self.server));
        let request = self.client.get(self.url(path, query)?).timeout(ANSWER_TIME_MAX);
        self.success_body(request.send().await).await
    }

    /// Posts a body to `path` and returns the answer as JSON.
    pub(in crate::cli) async fn post(&self, path: &str, query: &[(&str, &str)], body: &LookupRequest) -> Result<Value, Failure> {
        let _progress = self.start_progress(&format!("waiting for {}", self.server));
        let request = self.client.post(self.url(path, query)?).timeout(ANSWER_TIME_MAX).json(body);
        self.parse(&self.success_body(request.send().await).await?)
    }

    /// Posts to `path` without a body and returns the answer's JSON as `T`.
    pub(in crate::cli) async fn start<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, Failure> {
        let request = self.client.post(self.url(path, query)?).timeout(ANSWER_TIME_MAX);
        self.parse(&self.success_body(request.send().await).await?)
    }

    /// Requests a probe. Returns whether it succeeded, and its text. A probe that reports an error
    /// is no [`Failure`]; a redirect is.
    pub(super) async fn probe(&self, path: &str) -> Result<(bool, String), Failure> {
        let response = self.client.get(self.url(path, &[])?).timeout(CONNECT_TIME_MAX).send().await;
        let response = response.map_err(|error| self.connection_failure(error))?;
        let healthy = response.status().is_success();
        if response.status().is_redirection() {
            return Err(self.refusal(response).await);
        }
        Ok((healthy, String::from_utf8_lossy(&self.read(response, ANSWER_BYTES_MAX).await?).into_owned()))
    }

    /// Opens a stream of JSON lines.
    pub(super) async fn stream(&self, path: &str, query: &[(&str, &str)]) -> Result<Response, Failure> {
        let request = self.client.get(self.url(path, query)?).header(ACCEPT, "application/x-ndjson");
        // the stream itself never ends, so the request has no timeout of its own
        let response = match timeout(ANSWER_TIME_MAX, request.send()).await {
            Ok(response) => response.map_err(|error| self.connection_failure(error))?,
            Err(_) => return Err(self.timed_out()),
        };
        self.note_dump(&response);
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    /// Reports once that the server serves a dump.
    fn note_dump(&self, response: &Response) {
        if !self.is_silent
            && let Some(time) = response.headers().get(DUMP_HEADER).and_then(|time| time.to_str().ok())
        {
            self.dump_note.call_once(|| crate::cli::print_to_stderr(format!("from a dump of {time}, not from the clusters\n")));
        }
    }

    /// Starts a progress line, unless the client is silent.
    fn start_progress(&self, text: &str) -> Option<ProgressLine> {
        (!self.is_silent).then(|| ProgressLine::start(text))
    }

    fn url(&self, path: &str, query: &[(&str, &str)]) -> Result<Url, Failure> {
        let mut url = self.base.join(path).map_err(|error| Failure::usage(format!("{path} is not a path: {error}")))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    /// Returns the body of a successful answer.
    async fn success_body(&self, response: reqwest::Result<Response>) -> Result<Vec<u8>, Failure> {
        let response = response.map_err(|error| self.connection_failure(error))?;
        self.note_dump(&response);
        if response.status().is_success() { self.read(response, ANSWER_BYTES_MAX).await } else { Err(self.refusal(response).await) }
    }

    fn parse<T: DeserializeOwned>(&self, answer: &[u8]) -> Result<T, Failure> {
        serde_json::from_slice(answer).map_err(|_| Failure::unavailable(format!("{} answers, but it is not a meshkeep", self.server)))
    }

    /// Reads a whole body of at most `bytes_max` bytes. The request's timeout, if it has one, also
    /// covers the body.
    async fn read(&self, mut response: Response, bytes_max: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.connection_failure(error))? {
            if bytes.len() + chunk.len() > bytes_max {
                return Err(self.too_large("an answer", bytes_max));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// Returns the failure for an answer that is larger than any answer of a meshkeep.
    pub(super) fn too_large(&self, what: &str, bytes_max: usize) -> Failure {
        let text = format!(
            "{} sends {what} of more than {} MiB, so it is not a meshkeep: give another address with {}",
            self.server,
            bytes_max >> 20,
            self.option
        );
        Failure::unavailable(text)
    }

    fn timed_out(&self) -> Failure {
        let server = self.server.trim_start_matches("http://");
        Failure::unavailable(format!("{server} did not answer in time: it is overloaded, or not a meshkeep"))
    }

    /// Returns the failure for a request without an answer, with advice.
    fn connection_failure(&self, error: reqwest::Error) -> Failure {
        let (server, option) = (self.server.trim_start_matches("http://"), self.option);
        // the URL may contain a password
        let error = error.without_url();
        let cause = innermost_cause(&error);
        if error.is_timeout() && !error.is_connect() {
            return self.timed_out();
        }
        let text = if let Some(text) = self.certificate_refusal(&cause) {
            text
        } else if cause.contains("InvalidContentType") {
            format!("{server} does not use TLS: use http:// in {option}")
        } else if let Some(reason) = server_certificate::refusal(&error) {
            server_certificate::describe(server, option, reason)
        } else if error.is_connect() {
            format!("no meshkeep at {server} ({cause}): start one with `meshkeep serve`, or give another address with {option}")
        } else if self.base.scheme() == "http" && ["invalid HTTP version", "before message completed"].iter().any(|one| cause.contains(one))
        {
            format!("{server} does not answer in HTTP: if it uses TLS, use https:// in {option}")
        } else {
            format!("the connection to {server} broke: {cause}")
        };
        Failure::unavailable(text)
    }

    /// Returns a message if a connection probably failed because of the client certificate or the
    /// lack of one (TLS alerts: RFC 8446, 6.2).
    fn certificate_refusal(&self, cause: &str) -> Option<String> {
        const REFUSALS: [&str; 8] = [
            "AccessDenied",
            "BadCertificate",
            "CertificateExpired",
            "CertificateRevoked",
            "CertificateUnknown",
            "DecryptError",
            "UnknownCA",
            "UnsupportedCertificate",
        ];
        // a server that refuses a certificate may close the connection before its reason is read
        const CLOSE_CAUSES: [&str; 4] = ["reset", "broken pipe", "closed", "before message completed"];
        if self.base.scheme() != "https" {
            return None;
        }
        let server = &self.server;
        let is_alert = cause.contains("fatal alert");
        if is_alert && cause.contains("CertificateRequired") {
            return Some(format!("{server} requires a client certificate: give one with --client-cert and --client-key"));
        }
        if is_alert && self.has_certificate && REFUSALS.iter().any(|alert| cause.contains(alert)) {
            return Some(format!(
                "{server} refuses the certificate in --client-cert ({cause}): an authority in that meshkeep's --client-ca must have signed it, and it must not have expired"
            ));
        }
        let is_closed = CLOSE_CAUSES.iter().any(|close| cause.contains(close));
        let hint = if self.has_certificate {
            "check that it trusts the certificate in --client-cert"
        } else {
            "if it requires one, give --client-cert and --client-key"
        };
        is_closed.then(|| {
            format!("the connection to {server} broke ({cause}), perhaps because a client certificate is refused or missing: {hint}")
        })
    }

    /// Returns the failure for a refusal: the detail of its problem document. A server that sends
    /// none is not a meshkeep.
    async fn refusal(&self, response: Response) -> Failure {
        let status = response.status();
        if status.is_redirection() {
            return self.redirect_failure(&response);
        }
        let body = match timeout(ANSWER_TIME_MAX, self.read(response, PROBLEM_BYTES_MAX)).await {
            Ok(Ok(body)) => body,
            Ok(Err(failure)) => return failure,
            Err(_) => return self.timed_out(),
        };
        let Ok(ProblemDocument { detail: text, last_version, .. }) = serde_json::from_slice(&body) else {
            return Failure::unavailable(format!(
                "{} answers {status}, and it is not a meshkeep: give another address with {}",
                self.server, self.option
            ));
        };
        let text = if self.keeps_paths { text } else { name_commands(&text) };
        let text = text + &last_version.as_deref().map(describe_last_version).unwrap_or_default();
        match status {
            StatusCode::NOT_FOUND => Failure::new(text),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::unavailable(format!("{text} (give the token with --token-file)")),
            StatusCode::BAD_REQUEST => Failure::usage(text),
            _ => Failure::unavailable(text),
        }
    }
}

impl ApiClient {
    /// Returns the failure for a redirect that was not followed.
    fn redirect_failure(&self, response: &Response) -> Failure {
        let target =
            response.headers().get(LOCATION).and_then(|target| target.to_str().ok()).and_then(|target| response.url().join(target).ok());
        let Some(target) = target else {
            return Failure::unavailable(format!(
                "{} answers {}, and it is not a meshkeep: give another address with {}",
                self.server,
                response.status(),
                self.option
            ));
        };
        let origin = target.origin();
        // path and query are chosen by the server, and may repeat a secret
        let shown =
            if origin.is_tuple() { origin.ascii_serialization() } else { format!("an address with the scheme {}", target.scheme()) };
        Failure::unavailable(if origin == response.url().origin() {
            format!("{} redirects too often, last to {shown}: give another address with {}", self.server, self.option)
        } else {
            format!(
                "{} redirects to another server, {shown}, and the command does not follow because that server would get the token: if you trust it, give its address with {}",
                self.server, self.option
            )
        })
    }
}

/// Returns the policy that follows redirects to the same scheme, host and port only.
fn redirects() -> Policy {
    Policy::custom(|attempt| {
        let is_same = attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
        if is_same && attempt.previous().len() <= REDIRECTS_MAX { attempt.follow() } else { attempt.stop() }
    })
}

/// Returns the address of the server for messages. A URL is cut to scheme, host and port: any other
/// part may be a secret.
fn redacted_server(server: &str) -> String {
    let is_plain = |text: &str| text.chars().all(|character| character.is_ascii_alphanumeric() || "-._:[]".contains(character));
    match server.split_once("://") {
        Some(("unix", _)) => server.to_owned(),
        Some(_) => redact_urls(server.trim_end_matches('/')).into_owned(),
        None if is_plain(server) => server.to_owned(),
        None => SecretUrl::new(server).shown(),
    }
}

/// Returns the items of an answer that is not a page of a list.
pub(in crate::cli) fn items(mut answer: Value) -> Vec<Value> {
    match answer.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Returns the text of an error's innermost cause, without the system's error number.
fn innermost_cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = readable_error(innermost);
    let words = text.trim_start_matches("failed to lookup address information: ");
    // messages of the system begin with a capital letter, which becomes lower case; other messages
    // may begin with a name and stay as they are
    let is_system = innermost.is::<std::io::Error>();
    let mut letters = words.chars();
    match letters.next().filter(|_| is_system) {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => words.to_owned(),
    }
}

/// Returns the authorization header with the token in a file.
fn read_token(path: &Path) -> Result<HeaderValue, Failure> {
    let unusable = |reason: &str| Failure::usage(format!("--token-file {}: {reason}", path.display()));
    let bytes = read_argument(path, SMALL_FILE_BYTES_MAX).map_err(|error| unusable(&error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| unusable("contains no token: it must be one line of text"))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", text.trim()))
        .map_err(|_| unusable("contains no token: it must be one line of text"))?;
    value.set_sensitive(true);
    Ok(value)
}
