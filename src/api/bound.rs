//! The bound face: every address is taken and every file is read before anything is served.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bind_error::BindError;
use super::etcd::{self, EtcdService};
use super::guard::{Guard, Hosts, Token};
use super::options::ApiOptions;
use super::router;
use super::state::ApiState;
use crate::admission::Scans;
use crate::findings::{self, Poster};
use crate::handle::Handle;
use crate::model::ListenAddress;
use crate::server::{self, ConnectionLimits, Endpoint, HEALTH_CONNECTION_COUNT_MAX, Kept, KeptFiles, Listener, Look, Seats, Serving};

/// A face that holds its addresses and serves nothing yet.
pub struct Bound {
    listeners: Vec<Listener>,
    /// Where probes and metrics alone are served.
    health: Option<Listener>,
    /// Where the mirror is served as an etcd, and what answers there.
    etcd: Option<Listener>,
    etcd_service: Option<EtcdService>,
    /// Where both do what takes long.
    scans: Scans,
    guard: Guard,
    health_guard: Guard,
    etcd_guard: Guard,
    tls: Option<Arc<Kept<Serving>>>,
    /// The token and the certificates.
    files: KeptFiles,
    reread: Arc<Notify>,
    limits: ConnectionLimits,
    /// Posts findings.
    poster: Option<Poster>,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl Bound {
    /// Takes every address and reads every file that serving needs, so that nothing of it can fail later.
    ///
    /// # Errors
    /// [`BindError`], naming the address or file; nothing stays bound then.
    pub async fn bind(listen: &[ListenAddress], options: &ApiOptions) -> Result<Self, BindError> {
        let tls = options.tls.as_ref().map(server::keep_tls).transpose()?.map(Arc::new);
        let token = options.token_file.as_deref().map(keep_token).transpose()?.map(Arc::new);
        let kept = [tls.clone().map(|tls| tls as Arc<dyn Look>), token.clone().map(|token| token as Arc<dyn Look>)];
        let poster = options.on_problem.as_ref().map(Poster::new).transpose()?;
        let mut listeners = Vec::with_capacity(listen.len());
        for address in listen {
            listeners.push(Listener::bind(address).await?);
        }
        let health = match &options.health_listen {
            Some(address) => Some(Listener::bind(address).await?),
            None => None,
        };
        let etcd = match &options.etcd_listen {
            Some(address) => Some(Listener::bind(address).await?),
            None => None,
        };
        let without_token = |address: &Option<ListenAddress>| match address {
            // a page in a browser of this machine must not read it through a name of its own
            Some(address) if address.is_local() => Guard::new(Hosts::new(&[], &options.allowed_hosts), None),
            _ => Guard::open_to_all(),
        };
        let (health_guard, etcd_guard) = (without_token(&options.health_listen), without_token(&options.etcd_listen));
        // who asks there has neither token nor certificate
        let is_protected = token.is_some() || options.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let health_guard = if is_protected { health_guard.of_anonymous() } else { health_guard };
        let bound: Vec<IpAddr> = listeners.iter().filter_map(Listener::ip).collect();
        let guard = Guard::new(Hosts::new(&bound, &options.allowed_hosts), token);
        let (files, reread) = (KeptFiles::new(kept.into_iter().flatten()), Arc::clone(&options.reread));
        let limits = options.limits;
        let (etcd_service, scans) = (None, Scans::default());
        Ok(Self { guard, health_guard, etcd_guard, listeners, health, etcd, etcd_service, scans, tls, files, reread, limits, poster })
    }

    /// What was bound, as URLs: `http://127.0.0.1:PORT`, `https://…` with TLS, `unix:///path`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.listeners.iter().map(|listener| listener.url(scheme)).collect()
    }

    /// Where the mirror is served as an etcd, as a URL.
    #[must_use]
    pub fn etcd_address(&self) -> Option<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.etcd.as_ref().map(|listener| listener.url(scheme))
    }

    /// Where it does what takes long, for another face to share.
    #[must_use]
    pub fn scans(&self) -> Scans {
        self.scans.clone()
    }

    /// The bound face, with what answers where the mirror is served as an etcd.
    #[must_use]
    pub fn with_etcd(self, service: EtcdService) -> Self {
        Self { etcd_service: Some(service), ..self }
    }

    /// Where probes and metrics alone are served, as a URL.
    #[must_use]
    pub fn health_address(&self) -> Option<String> {
        self.health.as_ref().map(|listener| listener.url("http"))
    }

    /// Serves until `stop_accepting` is cancelled: then the face is no longer ready, accepts nothing more, ends every stream with a
    /// last bookmark, and lets requests finish for `grace` at most. Returns when no connection is left.
    pub async fn serve(self, handle: Handle, stop_accepting: CancellationToken, grace: Duration) {
        let seats = Seats::new(self.limits);
        let state = ApiState::new(handle, stop_accepting.clone())
            .with(|shared| (shared.seats, shared.scans) = (seats.clone(), self.scans))
            .with(|shared| (shared.findings.files, shared.findings.certificate) = (self.files.clone(), self.tls.clone()));
        // ends with this future
        let mut watching = JoinSet::new();
        watching.spawn(self.files.watch(self.reread));
        watching.spawn(findings::keep(state.findings.clone()));
        if let Some(poster) = self.poster {
            watching.spawn(poster.run(state.findings.posts.clone(), state.handle.uptime()));
        }
        let health_router = router::health_router(state.clone(), self.health_guard);
        let etcd_router = etcd::router(state.clone(), self.etcd_guard, self.etcd_service);
        let router = router::router(state, self.guard);
        let body_max = Some(seats.limits().body);
        // places of its own: whoever fills those of the face must not make it look dead
        let health_seats = Seats::new(ConnectionLimits { count_max: HEALTH_CONNECTION_COUNT_MAX, ..self.limits });
        let health = |listener| Endpoint { listener, router: health_router, tls: None, seats: health_seats, body_max };
        let listeners = self.listeners.into_iter();
        let main =
            listeners.map(|listener| Endpoint { listener, router: router.clone(), tls: self.tls.clone(), seats: seats.clone(), body_max });
        // a stream of watches is one request, whose body ends with it
        let etcd = |listener| Endpoint { listener, router: etcd_router, tls: self.tls.clone(), seats: seats.clone(), body_max: None };
        let endpoints = main.chain(self.health.map(health)).chain(self.etcd.map(etcd)).collect();
        server::serve(endpoints, stop_accepting, grace).await;
        drop(watching);
    }
}

fn keep_token(path: &Path) -> Result<Kept<Token>, BindError> {
    Token::keep(path).map_err(|reason| BindError::Token { path: path.to_owned(), reason })
}
