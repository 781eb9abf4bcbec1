//! The `Auth` service: there are no users.
//!
//! A request for a token fails as with an etcd without authentication. Clients with a user name in
//! their file then continue without a token (`client/v3/client.go`, `getToken`). Certificates
//! decide about access.
//!
//! It does not implement the trait of `etcd-client`, which does not export all of the types.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

#[derive(Debug, Clone)]
pub(in crate::etcd_api) struct AuthStub;

impl NamedService for AuthStub {
    const NAME: &'static str = "etcdserverpb.Auth";
}

impl Service<Request<Body>> for AuthStub {
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
