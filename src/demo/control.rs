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

/// Maximum number of concurrent connections; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;

/// A change to a simulated cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Make its etcd unreachable.
    Break,
    /// Delete all data of its etcd.
    Lose,
    /// Undo both.
    Heal,
}

/// A command from the keyboard or from HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    /// Change the cluster with this name.
    Cluster(String, What),
    /// Change the first cluster that the change applies to.
    Next(What),
    /// Kill the sidecar and start it again.
    Restart,
    /// Stop the demo.
    Quit,
}

/// Serves the control API in the background. Returns the bound address.
pub(super) async fn serve(address: SocketAddr, orders: mpsc::Sender<Ask>, tasks: &mut JoinSet<()>) -> Result<SocketAddr, DemoError> {
    let failed = |cause| DemoError::Listen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                    let Ok((stream, _)) = accepted else { continue };
                    let orders = orders.clone();
                    let answer = service_fn(move |request| answer(request, orders.clone()));
                    connections.spawn(async move { drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await) });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    });
    Ok(bound)
}

async fn answer(request: Request<Incoming>, orders: mpsc::Sender<Ask>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match order(request.method(), request.uri().path()) {
        // requests from web pages of other sites are refused
        Some(_) if request.headers().contains_key(http::header::ORIGIN) => (StatusCode::FORBIDDEN, "not from a page".to_owned()),
        Some(Ask::Cluster(name, _)) if !CLUSTERS.iter().any(|(known, _)| *known == name) => {
            (StatusCode::NOT_FOUND, format!("there is no cluster {name}, but {}", CLUSTERS.map(|(name, _)| name).join(", ")))
        }
        Some(ask) if orders.send(ask.clone()).await.is_ok() => (StatusCode::ACCEPTED, "done".to_owned()),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "the demo ends".to_owned()),
        None => (StatusCode::NOT_FOUND, "POST /demo/clusters/{name}/break, lose or heal".to_owned()),
    };
    let mut response = Response::new(Full::from(text + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
    Ok(response)
}

fn order(method: &Method, path: &str) -> Option<Ask> {
    let (name, what) = path.strip_prefix("/demo/clusters/")?.split_once('/')?;
    let what = match what {
        "break" => What::Break,
        "lose" => What::Lose,
        "heal" => What::Heal,
        _ => return None,
    };
    (method == Method::POST).then(|| Ask::Cluster(name.to_owned(), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_posted_to_a_cluster() {
        let of = |what| Some(Ask::Cluster("paris".to_owned(), what));
        assert_eq!(order(&Method::POST, "/demo/clusters/paris/break"), of(What::Break));
        assert_eq!(order(&Method::POST, "/demo/clusters/paris/heal"), of(What::Heal));
        assert_eq!(order(&Method::GET, "/demo/clusters/paris/heal"), None);
        assert_eq!(order(&Method::POST, "/demo/clusters/paris/explode"), None);
    }
}
