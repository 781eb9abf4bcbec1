//! `Auth`: there are no users, and asking for a token says so as an etcd without authentication does, which clients with a user's name in
//! their file take for "go on without" (`client/v3/client.go`, `getToken`). Who may ask is told by certificates.
//!
//! Not etcd's own trait: `etcd-client` does not name all types of it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

/// The service.
#[derive(Debug, Clone)]
pub(in crate::etcd_api) struct NoUsers;

impl NamedService for NoUsers {
    const NAME: &'static str = "etcdserverpb.Auth";
}

impl Service<Request<Body>> for NoUsers {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Status::failed_precondition("etcdserver: authentication is not enabled").into_http()))
    }
}
