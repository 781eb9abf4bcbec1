//! HTTP control of the demo: `POST /demo/clusters/{name}/break`, `lose` and `heal`. Only the demo
//! serves it.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{CLUSTERS, DemoError};
use crate::model::PageHeaders;

/// Maximum number of concurrent connections; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;

/// A change to a simulated cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClusterAction {
    /// Make its etcd unreachable.
    Break,
    /// Delete all data of its etcd.
    Lose,
    /// Undo both.
    Heal,
}

/// A command from the keyboard or from HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DemoCommand {
    /// Change the cluster with this name.
    Cluster(String, ClusterAction),
    /// Change the first cluster that the change applies to.
    Next(ClusterAction),
    /// Kill the sidecar and start it again.
    Restart,
    /// Stop the demo.
    Quit,
}

/// Serves the control API in the background. Returns the bound address.
pub(super) async fn serve(
    address: SocketAddr,
    commands: mpsc::Sender<DemoCommand>,
    tasks: &mut JoinSet<()>,
) -> Result<SocketAddr, DemoError> {
    let failed = |cause| DemoError::Listen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                    let Ok((stream, _)) = accepted else { continue };
                    let commands = commands.clone();
                    let answer = service_fn(move |request| answer(request, commands.clone()));
                    connections.spawn(async move { drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await) });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    });
    Ok(bound)
}

async fn answer(request: Request<Incoming>, commands: mpsc::Sender<DemoCommand>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match parse_command(request.method(), request.uri().path()) {
        Some(_) if is_from_other_page(request.headers()) => {
            (StatusCode::FORBIDDEN, "web pages of other origins may not send this request".to_owned())
        }
        Some(DemoCommand::Cluster(name, _)) if !CLUSTERS.iter().any(|(known, _)| *known == name) => {
            (StatusCode::NOT_FOUND, format!("there is no cluster {name}: the clusters are {}", CLUSTERS.map(|(name, _)| name).join(", ")))
        }
        Some(command) if commands.send(command.clone()).await.is_ok() => (StatusCode::ACCEPTED, "done".to_owned()),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "the demo is stopping".to_owned()),
        None => (StatusCode::NOT_FOUND, "POST /demo/clusters/{name}/break, lose or heal".to_owned()),
    };
    let mut response = Response::new(Full::from(text + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// Returns whether a web page of another origin sent a request. This address has no page, so with
/// DNS rebinding a page could only pretend that the address is its own.
fn is_from_other_page(headers: &http::HeaderMap) -> bool {
    let bytes = http::HeaderValue::as_bytes;
    let origins = headers.get_all(http::header::ORIGIN).iter().map(bytes);
    PageHeaders { fetch_site: headers.get("sec-fetch-site").map(bytes), origins, host: None }.check(|_| false).is_err()
}

fn parse_command(method: &Method, path: &str) -> Option<DemoCommand> {
    let (name, action) = path.strip_prefix("/demo/clusters/")?.split_once('/')?;
    let action = match action {
        "break" => ClusterAction::Break,
        "lose" => ClusterAction::Lose,
        "heal" => ClusterAction::Heal,
        _ => return None,
    };
    (method == Method::POST).then(|| DemoCommand::Cluster(name.to_owned(), action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_and_the_user_may_change_a_cluster() {
        let is_refused = |headers: &[(&'static str, &'static str)]| {
            let value =
                |(name, value): &(&'static str, &'static str)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value));
            is_from_other_page(&headers.iter().map(value).collect())
        };
        assert!(!is_refused(&[]) && !is_refused(&[("sec-fetch-site", "none")]));
        for headers in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            // a page that reaches the address under its own host name
            &[("origin", "http://evil.example:9871"), ("host", "evil.example:9871")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site"), ("origin", "http://localhost:9870")],
        ] {
            assert!(is_refused(headers), "{headers:?}");
        }
    }

    #[test]
    fn commands_are_posted_to_a_cluster() {
        let command_for_paris = |action| Some(DemoCommand::Cluster("paris".to_owned(), action));
        assert_eq!(parse_command(&Method::POST, "/demo/clusters/paris/break"), command_for_paris(ClusterAction::Break));
        assert_eq!(parse_command(&Method::POST, "/demo/clusters/paris/heal"), command_for_paris(ClusterAction::Heal));
        assert_eq!(parse_command(&Method::GET, "/demo/clusters/paris/heal"), None);
        assert_eq!(parse_command(&Method::POST, "/demo/clusters/paris/explode"), None);
    }
}
