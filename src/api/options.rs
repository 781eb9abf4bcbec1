//! Options of the HTTP API.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::model::{ListenAddress, SecretUrl, WebhookFormat};
use crate::server::{ConnectionLimits, TlsFiles};

/// Options of the HTTP API, except its addresses.
#[derive(Debug, Clone, Default)]
pub struct ApiOptions {
    /// Address that serves only probes and metrics, without a token and without TLS. On a local
    /// address, `Host` is checked.
    pub health_listen: Option<ListenAddress>,
    /// Address of the etcd API (`BoundApi::with_etcd`). It uses TLS if `tls` is set.
    pub etcd_listen: Option<ListenAddress>,
    /// Accepted `Host` values in addition to the bound addresses and loopback names.
    pub allowed_hosts: Vec<String>,
    /// File with the bearer token. All requests need it, except probes and those for the files of
    /// the page. Reloaded when it changes.
    pub token_file: Option<PathBuf>,
    /// File with a second token, which is accepted only for reading. The page accepts it in its
    /// address, for displays that nobody signs in to.
    pub view_token_file: Option<PathBuf>,
    /// Origins whose web pages may read answers, as browsers send them (RFC 6454 §6.2).
    pub cors_origins: Vec<String>,
    /// Origins whose web pages may show the page at `/` in a frame.
    pub frame_ancestors: Vec<String>,
    /// TLS of every TCP address. Its files are reloaded when they change.
    pub tls: Option<TlsFiles>,
    /// Notifies the API to reload the token and certificates unconditionally.
    pub reread: Arc<Notify>,
    /// URL to which findings are posted when they appear or are resolved, and the format.
    pub on_problem: Option<(SecretUrl, WebhookFormat)>,
    /// True if `/metrics` has every metric, and not only those that the alerts and the dashboard
    /// need.
    pub all_metrics: bool,
    /// Maximum number of connections, and the timeouts of a connection.
    pub limits: ConnectionLimits,
}
