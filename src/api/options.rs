//! Options of the HTTP API.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::model::{ListenAddress, SecretUrl};
use crate::server::{ConnectionLimits, TlsFiles};

/// What the face needs beside its addresses.
#[derive(Debug, Clone, Default)]
pub struct ApiOptions {
    /// Where probes and metrics alone are served, to whoever asks.
    pub health_listen: Option<ListenAddress>,
    /// Where the mirror is served as an etcd (`Bound::with_etcd`), with TLS where there is any.
    pub etcd_listen: Option<ListenAddress>,
    /// `Host` values that are accepted beside the bound addresses and loopback names.
    pub allowed_hosts: Vec<String>,
    /// A file with the bearer token that every request must carry but probes and those for the files of the page; read again when it changes.
    pub token_file: Option<PathBuf>,
    /// TLS on every TCP address; its files are read again when they change.
    pub tls: Option<TlsFiles>,
    /// Says that token and certificates shall be read again in any case.
    pub reread: Arc<Notify>,
    /// Where findings that appear or go are posted.
    pub on_problem: Option<SecretUrl>,
    /// How many connections, and how long each may do nothing.
    pub limits: ConnectionLimits,
}
