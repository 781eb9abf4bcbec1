//! Access checks: the `Host` of a request, the web page that sent it, and the bearer token.
//!
//! The `Host` check keeps a web page in a browser from reaching a loopback address under its own
//! host name (DNS rebinding). The check of `Sec-Fetch-Site` and `Origin` keeps it from starting
//! work there under any name (cross-site request forgery). Probes are open, because a kubelet has
//! no token and calls them by any address. Only clients that may read everything get the details of
//! a probe ([`Access`]). The files of the page at `/` need a valid `Host` but no token: the page
//! asks for the token itself.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, ORIGIN};
use axum::http::{HeaderValue, Method, Version};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use super::problem::{Problem, ProblemCode};
use super::render::accept::BATCH_PATH;
use crate::files::{SMALL_FILE_BYTES_MAX, read_bounded};
use crate::model::{OtherOriginError, PageHeaders};
use crate::server::{HttpExchange, ReloadableFile, Transport};

/// Maximum bytes of a request's body. 10,000 IPv6 addresses in JSON are 430 kB.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

/// Header with the relation of a web page to the address of its request.
const FETCH_SITE: &str = "sec-fetch-site";

/// Paths without access checks.
const OPEN_PATHS: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// Returns whether a path needs no token: the page with its files, the pages about problems, and
/// the description of the API.
///
/// They are identical in every meshkeep of a version. Nothing may be added that is not public.
fn is_page_file(path: &str) -> bool {
    matches!(path, "/" | "/problems" | "/docs" | "/openapi.json" | "/openapi-3.0.json")
        || ["/problems/", "/assets/", "/docs/"].iter().any(|folder| path.starts_with(folder))
}

/// Access of a client. The guard adds it to the extensions of requests to probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The client may read everything: it has proved its identity, or no proof is required.
    Full,
    /// The client has not identified itself. It gets only `ok` or `not ok`.
    Anonymous,
}

/// Access checks of an address. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    /// Accepted `Host` values; `None` for any.
    hosts: Option<Arc<AllowedHosts>>,
    /// Origins of other web pages that may do more than read.
    origins: Arc<[HeaderValue]>,
    token: Option<Arc<ReloadableFile<Token>>>,
    /// Token that is only accepted for reading.
    view_token: Option<Arc<ReloadableFile<Token>>>,
    /// Access of clients when no token is required.
    without_token: Access,
}

/// Names and addresses that clients may use as `Host`.
#[derive(Debug)]
pub(crate) struct AllowedHosts {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    /// Set if an unspecified address is bound. Any IP address is then accepted, because DNS
    /// rebinding works only with host names.
    allows_any_address: bool,
}

impl AllowedHosts {
    pub(crate) fn new(bound: &[IpAddr], names: &[String]) -> Self {
        let names = names.iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect();
        Self { names, addresses: bound.to_vec(), allows_any_address: bound.iter().any(IpAddr::is_unspecified) }
    }

    /// Returns whether a `Host` value, with or without a port, is accepted.
    fn allows(&self, host: &str) -> bool {
        // RFC 3986 §3.2.2: brackets enclose an IPv6 address, and only a port may follow
        let (bare, port) = match host.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((bare, port))) => (bare, port.strip_prefix(':').or(port.is_empty().then_some(port))),
            Some(None) => return false,
            None => host.rsplit_once(':').map_or((host, Some("")), |(bare, port)| (bare, Some(port))),
        };
        if !port.is_some_and(|port| port.bytes().all(|digit| digit.is_ascii_digit())) {
            return false;
        }
        let bare = bare.trim_end_matches('.').to_ascii_lowercase();
        match bare.parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback() || self.allows_any_address || self.addresses.contains(&ip),
            Err(_) => bare == "localhost" || bare.ends_with(".localhost") || self.names.contains(&bare),
        }
    }
}

/// Digest of the token in a file. The token itself is not stored.
#[derive(Debug)]
pub(crate) struct Token([u8; 32]);

impl Token {
    /// Loads a token file, which is reloaded when it changes. `name` is that of the file in logs
    /// and metrics.
    ///
    /// # Errors
    /// Returns why the file cannot be used.
    pub(crate) fn load(name: &'static str, path: &Path) -> Result<ReloadableFile<Self>, String> {
        let file = path.to_owned();
        ReloadableFile::open(name, vec![path.to_owned()], move || Self::read_file(&file))
    }

    fn read_file(path: &Path) -> Result<Self, String> {
        let bytes = read_bounded(path, SMALL_FILE_BYTES_MAX).map_err(|error| error.to_string())?;
        let text = String::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
        let token = text.trim();
        if token.is_empty() { Err("it contains no token".to_owned()) } else { Ok(Self(Sha256::digest(token).into())) }
    }

    /// Returns whether this is the token.
    fn matches(&self, token: &str) -> bool {
        // constant-time comparison, so that the time reveals nothing about the token
        let given: [u8; 32] = Sha256::digest(token).into();
        given.iter().zip(self.0).fold(0, |difference, (given, expected)| difference | (given ^ expected)) == 0
    }
}

impl Guard {
    pub(crate) fn new(hosts: AllowedHosts, token: Option<Arc<ReloadableFile<Token>>>) -> Self {
        Self { hosts: Some(Arc::new(hosts)), origins: Arc::default(), token, view_token: None, without_token: Access::Full }
    }

    /// Also accepts a second token, only for reading.
    pub(crate) fn with_view_token(self, view_token: Option<Arc<ReloadableFile<Token>>>) -> Self {
        Self { view_token, ..self }
    }

    /// Also accepts requests that do more than read from web pages of these origins.
    pub(crate) fn with_origins(self, origins: &[HeaderValue]) -> Self {
        Self { origins: origins.into(), ..self }
    }

    /// Creates the guard of an address that other machines may use without a token. It accepts any
    /// `Host`: without cookies and loopback, DNS rebinding gains nothing.
    pub(crate) fn open_to_all() -> Self {
        Self { hosts: None, origins: Arc::default(), token: None, view_token: None, without_token: Access::Anonymous }
    }

    /// Makes all clients of this address anonymous, because they cannot identify themselves here
    /// while other addresses require it.
    pub(crate) fn for_anonymous_clients(self) -> Self {
        Self { without_token: Access::Anonymous, ..self }
    }

    /// Returns the access of the client that sent a request to a probe.
    fn access(&self, request: &Request) -> Access {
        match &self.token {
            // a web page that reaches this address under its own host name (DNS rebinding) gets no
            // details
            _ if self.check_host(request).is_err() => Access::Anonymous,
            None => self.without_token,
            Some(_) if self.has_token(request) => Access::Full,
            Some(_) => Access::Anonymous,
        }
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        let exchange = request.extensions().get::<Arc<HttpExchange>>();
        if exchange.is_some() {
            check_host_count(request)?;
        }
        check_length(request)?;
        if OPEN_PATHS.contains(&request.uri().path()) {
            return Ok(());
        }
        self.check_host(request)?;
        self.check_origin(request)?;
        let admit = |shows_token| {
            if let Some(exchange) = exchange {
                exchange.admit(shows_token);
            }
            Ok(())
        };
        if self.token.is_none() {
            return admit(false);
        }
        if self.has_token(request) {
            return admit(true);
        }
        if is_page_file(request.uri().path()) {
            // the connection stays anonymous
            return Ok(());
        }
        if shows(self.view_token.as_ref(), request) {
            return Err(Problem::new(
                ProblemCode::Forbidden,
                "the token in the file of --view-token-file is only for reading: send the token in the file of --token-file",
            ));
        }
        Err(Problem::new(ProblemCode::Unauthorized, "send the token in the file of --token-file as `Authorization: Bearer …`"))
    }

    /// Returns whether a request has a token that is accepted for its method.
    fn has_token(&self, request: &Request) -> bool {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD) || request.uri().path() == BATCH_PATH;
        shows(self.token.as_ref(), request) || is_read && shows(self.view_token.as_ref(), request)
    }

    fn check_host(&self, request: &Request) -> Result<(), Problem> {
        let Some(hosts) = self.hosts.as_ref().filter(|_| request.extensions().get::<Transport>() == Some(&Transport::Tcp)) else {
            return Ok(());
        };
        // a request without a host (HTTP/1.0) does not come from a browser
        match host_of(request) {
            Some(host) if !hosts.allows(host) => Err(Problem::new(
                ProblemCode::UnknownHost,
                format!("meshkeep does not accept the host {host:?}: allow it with --allowed-host"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Refuses a request of a web page of another origin that does more than read. Clients that are
    /// not browsers send no `Origin`.
    fn check_origin(&self, request: &Request) -> Result<(), Problem> {
        if request.method().is_safe() {
            return Ok(());
        }
        let headers = request.headers();
        let page = PageHeaders {
            fetch_site: headers.get(FETCH_SITE).map(HeaderValue::as_bytes),
            origins: headers.get_all(ORIGIN).iter().map(HeaderValue::as_bytes),
            host: host_of(request),
        };
        let is_listed = |origin: &[u8]| self.origins.iter().any(|listed| listed.as_bytes() == origin);
        page.check(is_listed).map_err(|OtherOriginError { origin }| {
            let detail = match origin.filter(|origin| *origin != b"null") {
                None => {
                    "a web page without an origin may not send this request: open the page from a web server whose origin --cors-origin lists"
                        .to_owned()
                }
                Some(origin) => {
                    let origin = String::from_utf8_lossy(origin);
                    format!("web pages of the origin {origin:?} may not send this request: allow this origin with --cors-origin")
                }
            };
            Problem::new(ProblemCode::Forbidden, detail)
        })
    }
}

/// Returns the host that a request names. HTTP/2 has it in the URI.
fn host_of(request: &Request) -> Option<&str> {
    let header = || request.headers().get(HOST).map(|value| value.to_str().unwrap_or("?"));
    request.uri().authority().map(axum::http::uri::Authority::as_str).or_else(header)
}

/// Returns whether a request has this token.
fn shows(token: Option<&Arc<ReloadableFile<Token>>>, request: &Request) -> bool {
    token.zip(bearer_token(request)).is_some_and(|(token, given)| token.current().matches(given))
}

/// Returns the bearer token of a request.
fn bearer_token(request: &Request) -> Option<&str> {
    let header = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (_, token) = header.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))?;
    Some(token.trim())
}

/// Checks that a request names one host: in the `Host` header (RFC 9112 §3.2) or, with HTTP/2, in
/// the URI (RFC 9113 §8.3.1). An HTTP/1.0 request may name none, because it does not come from a
/// browser.
fn check_host_count(request: &Request) -> Result<(), Problem> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let authority = request.uri().authority().filter(|_| request.version() == Version::HTTP_2);
    let differs = first.zip(authority).is_some_and(|(host, authority)| *host != *authority.as_str());
    if second.is_some() || differs {
        return Err(Problem::new(ProblemCode::BadRequest, "the request has several Host headers: send one"));
    }
    if first.is_none() && authority.is_none() && request.version() > Version::HTTP_10 {
        return Err(Problem::new(ProblemCode::BadRequest, "the request has no Host header: send one"));
    }
    Ok(())
}

/// Refuses a body whose `Content-Length` is too large before it is read.
fn check_length(request: &Request) -> Result<(), Problem> {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX as u64) {
        return Err(Problem::new(ProblemCode::TooLarge, format!("a body may have at most {BODY_BYTES_MAX} bytes: send several requests")));
    }
    Ok(())
}

/// Middleware that admits a request, or answers it with a problem.
pub(crate) async fn check_access(State(guard): State<Guard>, mut request: Request, next: Next) -> Result<Response, Problem> {
    guard.check(&request)?;
    if OPEN_PATHS.contains(&request.uri().path()) {
        let access = guard.access(&request);
        request.extensions_mut().insert(access);
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Reloadable;

    #[test]
    fn only_own_and_allowed_hosts_are_accepted() {
        let hosts = AllowedHosts::new(&["192.0.2.7".parse().unwrap()], &["Meshkeep.kube-system.svc.".to_owned()]);
        for good in ["localhost", "localhost:9870", "a.localhost", "127.0.0.1:1", "[::1]:9870", "192.0.2.7", "meshkeep.kube-system.svc:80"]
        {
            assert!(hosts.allows(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9870",
            "192.0.2.8",
            "localhost.evil.example",
            "",
            "[2001:db8::1]",
            "[::1].evil.example",
            "[::1",
            "[::1]x:80",
            "127.0.0.1:80x",
            "localhost:80@evil.example",
        ] {
            assert!(!hosts.allows(bad), "{bad}");
        }
        assert!(AllowedHosts::new(&["0.0.0.0".parse().unwrap()], &[]).allows("192.0.2.8:9870"));
    }

    #[test]
    fn a_rotated_token_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert_eq!(Token::load("token file", &path).unwrap_err(), "No such file or directory (os error 2)");
        std::fs::write(&path, " \n").unwrap();
        assert_eq!(Token::load("token file", &path).unwrap_err(), "it contains no token");
        std::fs::write(&path, "first\n").unwrap();
        let token = Token::load("token file", &path).unwrap();
        assert!(token.current().matches("first") && !token.current().matches("second") && !token.current().matches(""));
        std::fs::write(&path, "").unwrap();
        token.reload_if_changed(false);
        assert_eq!(token.failure().as_deref(), Some("it contains no token"));
        assert!(token.current().matches("first"));
        std::fs::write(&path, "second\n").unwrap();
        token.reload_if_changed(false);
        assert!(token.current().matches("second") && !token.current().matches("first") && token.failure().is_none());
    }
}
