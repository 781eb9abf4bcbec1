//! The HTTP API with bound addresses: all addresses are bound and all files loaded before anything
//! is served.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bind_error::BindError;
use super::etcd::{self, EtcdService};
use super::guard::{AllowedHosts, Guard, Token};
use super::options::ApiOptions;
use super::router;
use super::state::ApiState;
use crate::admission::ScanExecutor;
use crate::findings::{self, WebhookSender};
use crate::handle::Handle;
use crate::model::ListenAddress;
use crate::page;
use crate::server::{
    self, ConnectionLimiter, ConnectionLimits, Endpoint, HEALTH_CONNECTION_COUNT_MAX, Listener, Reloadable, ReloadableFile,
    ReloadableFiles, TlsConfig,
};

/// The HTTP API with bound addresses. Serves nothing until [`BoundApi::serve`].
pub struct BoundApi {
    listeners: Vec<Listener>,
    /// Listener that serves only probes and metrics.
    health: Option<Listener>,
    etcd: Option<Listener>,
    etcd_service: Option<EtcdService>,
    /// Scheduler of requests that take long, shared by the HTTP API and the etcd API.
    scans: ScanExecutor,
    guard: Guard,
    health_guard: Guard,
    etcd_guard: Guard,
    tls: Option<Arc<ReloadableFile<TlsConfig>>>,
    /// The token and the certificates.
    files: ReloadableFiles,
    reload: Arc<Notify>,
    limits: ConnectionLimits,
    /// Posts findings to `--on-problem`.
    webhook: Option<WebhookSender>,
    all_metrics: bool,
    /// Origins whose web pages may read answers.
    cors_origins: Vec<HeaderValue>,
    /// Content security policy of the page at `/`.
    page_policy: HeaderValue,
}

impl fmt::Debug for BoundApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundApi").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl BoundApi {
    /// Binds every address and loads every file, so that serving cannot fail because of them later.
    ///
    /// # Errors
    /// Returns a [`BindError`] that names the address or file. No address stays bound.
    pub async fn bind(listen: &[ListenAddress], options: &ApiOptions) -> Result<Self, BindError> {
        let tls = options.tls.as_ref().map(server::open_tls).transpose()?.map(Arc::new);
        let token = load_token("token file", options.token_file.as_deref())?;
        let view_token = load_token("view token file", options.view_token_file.as_deref())?;
        let tokens = [&token, &view_token].into_iter().flatten().map(|token| Arc::clone(token) as Arc<dyn Reloadable>);
        let reloadable: Vec<_> = tls.iter().map(|tls| Arc::clone(tls) as Arc<dyn Reloadable>).chain(tokens).collect();
        let webhook = options.on_problem.as_ref().map(|(url, format)| WebhookSender::new(url, *format)).transpose()?;
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
            // a web page in a browser on this machine must not read this address under the page's
            // own host name (DNS rebinding)
            Some(address) if address.is_local() => Guard::new(AllowedHosts::new(&[], &options.allowed_hosts), None),
            _ => Guard::open_to_all(),
        };
        let (health_guard, etcd_guard) = (without_token(&options.health_listen), without_token(&options.etcd_listen));
        // clients of the health address present neither a token nor a certificate
        let is_protected = token.is_some() || options.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let health_guard = if is_protected { health_guard.for_anonymous_clients() } else { health_guard };
        let bound: Vec<IpAddr> = listeners.iter().filter_map(Listener::ip).collect();
        // the settings accept only characters that a header can have
        let cors_origins: Vec<_> = options.cors_origins.iter().filter_map(|origin| HeaderValue::try_from(origin).ok()).collect();
        let guard = Guard::new(AllowedHosts::new(&bound, &options.allowed_hosts), token);
        let guard = guard.with_view_token(view_token).with_origins(&cors_origins);
        let (files, reload) = (ReloadableFiles::new(reloadable), Arc::clone(&options.reread));
        let (limits, all_metrics) = (options.limits, options.all_metrics);
        let page_policy = HeaderValue::try_from(page::policy_for_frames(&options.frame_ancestors));
        let page_policy = page_policy.unwrap_or_else(|_| HeaderValue::from_static(page::POLICY));
        let (etcd_service, scans) = (None, ScanExecutor::default());
        Ok(Self {
            guard,
            health_guard,
            etcd_guard,
            listeners,
            health,
            etcd,
            etcd_service,
            scans,
            tls,
            files,
            reload,
            limits,
            webhook,
            all_metrics,
            cors_origins,
            page_policy,
        })
    }

    /// Returns the bound addresses as URLs: `http://127.0.0.1:PORT`, `https://…` with TLS,
    /// `unix:///path`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.listeners.iter().map(|listener| listener.url(scheme)).collect()
    }

    /// Returns the URL of the etcd API, if it has an address.
    #[must_use]
    pub fn etcd_address(&self) -> Option<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.etcd.as_ref().map(|listener| listener.url(scheme))
    }

    /// Returns the scheduler of requests that take long, to share with the etcd API.
    #[must_use]
    pub fn scans(&self) -> ScanExecutor {
        self.scans.clone()
    }

    /// Sets the service of the etcd API.
    #[must_use]
    pub fn with_etcd(self, service: EtcdService) -> Self {
        Self { etcd_service: Some(service), ..self }
    }

    /// Returns the URL of the address that serves only probes and metrics, if there is one.
    #[must_use]
    pub fn health_address(&self) -> Option<String> {
        self.health.as_ref().map(|listener| listener.url("http"))
    }

    /// Serves until `stop_accepting` is cancelled.
    ///
    /// When it is cancelled, the API reports itself as not ready, stops accepting, ends every
    /// stream with a last bookmark, and gives open requests up to `grace` to finish. Returns when
    /// no connection is left.
    pub async fn serve(self, handle: Handle, stop_accepting: CancellationToken, grace: Duration) {
        let limiter = ConnectionLimiter::new(self.limits);
        let state = ApiState::new(handle, stop_accepting.clone())
            .with(|shared| (shared.connection_limiter, shared.scans) = (limiter.clone(), self.scans))
            .with(|shared| shared.all_metrics = self.all_metrics)
            .with(|shared| (shared.cors_origins, shared.page_policy) = (self.cors_origins, self.page_policy))
            .with(|shared| (shared.findings.files, shared.findings.certificate) = (self.files.clone(), self.tls.clone()));
        // the tasks end with this future
        let mut watching = JoinSet::new();
        watching.spawn(self.files.watch(self.reload));
        watching.spawn(findings::detect_findings(state.findings.clone()));
        if let Some(webhook) = self.webhook {
            watching.spawn(webhook.run(state.findings.webhook.clone(), state.handle.uptime()));
        }
        let health_router = router::health_router(state.clone(), self.health_guard);
        let etcd_router = etcd::router(state.clone(), self.etcd_guard, self.etcd_service);
        let router = router::router(state, self.guard);
        let body_max = Some(limiter.limits().body);
        // separate slots: clients that occupy all slots of the API must not make the probes fail
        let health_limiter = ConnectionLimiter::new(ConnectionLimits { count_max: HEALTH_CONNECTION_COUNT_MAX, ..self.limits });
        let health = |listener| Endpoint { listener, router: health_router, tls: None, limiter: health_limiter, body_max };
        let listeners = self.listeners.into_iter();
        let main = listeners.map(|listener| Endpoint {
            listener,
            router: router.clone(),
            tls: self.tls.clone(),
            limiter: limiter.clone(),
            body_max,
        });
        // a stream of watches is one request, and its body lasts as long as the stream
        let etcd = |listener| Endpoint { listener, router: etcd_router, tls: self.tls.clone(), limiter: limiter.clone(), body_max: None };
        let endpoints = main.chain(self.health.map(health)).chain(self.etcd.map(etcd)).collect();
        server::serve(endpoints, stop_accepting, grace).await;
        drop(watching);
    }
}

fn load_token(name: &'static str, path: Option<&Path>) -> Result<Option<Arc<ReloadableFile<Token>>>, BindError> {
    let Some(path) = path else { return Ok(None) };
    let token = Token::load(name, path).map_err(|reason| BindError::Token { path: path.to_owned(), reason })?;
    Ok(Some(Arc::new(token)))
}
