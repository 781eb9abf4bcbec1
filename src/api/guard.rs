//! Who may ask: the `Host` that a request names, and the bearer token.
//!
//! The `Host` check keeps a page in a browser from reaching a loopback address through a name of its own (DNS rebinding). Probes are
//! open: a kubelet has no token and calls them by any address.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use super::problem::{Code, Problem};

/// Paths that anybody may ask.
const OPEN_PATHS: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// How often the token file is looked at: a rotated token works within a second.
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is read even if its time has not changed, for file systems with coarse times.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// How a request reached us; each connection puts it into its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Over TCP: the `Host` counts.
    Tcp,
    /// Over a unix socket: no browser gets here.
    Unix,
}

/// What is checked. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    hosts: Arc<Hosts>,
    token: Option<Arc<TokenFile>>,
}

/// The names and addresses that we are called by.
#[derive(Debug)]
pub(crate) struct Hosts {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    /// Bound to all addresses: any address may be ours. An address cannot be rebound, only a name can.
    any_address: bool,
}

/// A token that is kept in a file.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    state: Mutex<TokenState>,
}

/// The token as last read; only its digest is kept.
#[derive(Debug)]
struct TokenState {
    digest: [u8; 32],
    modified: Option<SystemTime>,
    glanced: Instant,
    read: Instant,
}

impl Hosts {
    pub(crate) fn new(bound: &[IpAddr], names: &[String]) -> Self {
        let names = names.iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect();
        Self { names, addresses: bound.to_vec(), any_address: bound.iter().any(IpAddr::is_unspecified) }
    }

    /// Whether a `Host` value, with or without a port, means us.
    fn accept(&self, host: &str) -> bool {
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let bare = bare.trim_end_matches('.').to_ascii_lowercase();
        match bare.parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback() || self.any_address || self.addresses.contains(&ip),
            Err(_) => bare == "localhost" || bare.ends_with(".localhost") || self.names.contains(&bare),
        }
    }
}

impl TokenFile {
    /// Reads the token for the first time.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let now = Instant::now();
        let digest = read_token(path)?;
        let state = TokenState { digest, modified: modified(path), glanced: now, read: now };
        Ok(Self { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Whether a token is the one in the file. A file that cannot be read any more leaves the last token in force.
    fn accept(&self, token: &str) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(state.glanced) >= GLANCE_INTERVAL {
            state.glanced = now;
            self.refresh(&mut state, now);
        }
        let expected = state.digest;
        drop(state);
        // digests are compared to the end whatever differs, so that the time says nothing about the token
        let given: [u8; 32] = Sha256::digest(token).into();
        given.iter().zip(expected).fold(0, |difference, (given, expected)| difference | (given ^ expected)) == 0
    }

    fn refresh(&self, state: &mut TokenState, now: Instant) {
        let modified = modified(&self.path);
        if modified == state.modified && now.duration_since(state.read) < READ_INTERVAL {
            return;
        }
        match read_token(&self.path) {
            Ok(digest) => *state = TokenState { digest, modified, glanced: now, read: now },
            Err(error) => {
                tracing::warn!(path = %self.path.display(), error, "the token file cannot be read, the last token stays in force")
            }
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|data| data.modified()).ok()
}

fn read_token(path: &Path) -> Result<[u8; 32], String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let token = text.trim();
    if token.is_empty() { Err("it holds no token".to_owned()) } else { Ok(Sha256::digest(token).into()) }
}

impl Guard {
    pub(crate) fn new(hosts: Hosts, token: Option<TokenFile>) -> Self {
        Self { hosts: Arc::new(hosts), token: token.map(Arc::new) }
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        if OPEN_PATHS.contains(&request.uri().path()) {
            return Ok(());
        }
        self.check_host(request)?;
        let Some(file) = &self.token else { return Ok(()) };
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        if token.is_some_and(|(_, token)| file.accept(token.trim())) {
            return Ok(());
        }
        Err(Problem::new(Code::Unauthorized, "send the token of --token-file as `Authorization: Bearer …`"))
    }

    fn check_host(&self, request: &Request) -> Result<(), Problem> {
        if request.extensions().get::<Transport>() != Some(&Transport::Tcp) {
            return Ok(());
        }
        // HTTP/2 has it in the URI; what has neither (HTTP/1.0) comes from no browser
        let header = request.headers().get(HOST).map(|value| value.to_str().unwrap_or("?"));
        match request.uri().authority().map(axum::http::uri::Authority::as_str).or(header) {
            Some(host) if !self.hosts.accept(host) => {
                Err(Problem::new(Code::UnknownHost, format!("{host:?} is none of our names: allow it with --allowed-host")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Middleware: lets a request pass or answers it with a problem.
pub(crate) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Result<Response, Problem> {
    guard.check(&request)?;
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_and_addresses_are_accepted() {
        let hosts = Hosts::new(&["192.0.2.7".parse().unwrap()], &["Meshkeep.kube-system.svc.".to_owned()]);
        for good in ["localhost", "localhost:9870", "a.localhost", "127.0.0.1:1", "[::1]:9870", "192.0.2.7", "meshkeep.kube-system.svc:80"]
        {
            assert!(hosts.accept(good), "{good}");
        }
        for bad in ["evil.example", "evil.example:9870", "192.0.2.8", "localhost.evil.example", "", "[2001:db8::1]"] {
            assert!(!hosts.accept(bad), "{bad}");
        }
        assert!(Hosts::new(&["0.0.0.0".parse().unwrap()], &[]).accept("192.0.2.8:9870"));
    }

    #[test]
    fn a_token_that_is_rotated_takes_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert_eq!(TokenFile::open(&path).unwrap_err(), "No such file or directory (os error 2)");
        std::fs::write(&path, " \n").unwrap();
        assert_eq!(TokenFile::open(&path).unwrap_err(), "it holds no token");
        std::fs::write(&path, "first\n").unwrap();
        let file = TokenFile::open(&path).unwrap();
        assert!(file.accept("first") && !file.accept("second") && !file.accept(""));
        std::fs::write(&path, "second\n").unwrap();
        let long_ago = Instant::now().checked_sub(READ_INTERVAL).unwrap();
        {
            let mut state = file.state.lock().unwrap();
            state.glanced = long_ago;
            state.read = long_ago;
        }
        assert!(file.accept("second") && !file.accept("first"));
    }
}
