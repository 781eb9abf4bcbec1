//! Settings of who can read: TLS, tokens, and web pages of other origins.

use std::path::PathBuf;

use clap::Args;

use super::values::parse_origin;
use super::{UsageError, conflict};
use crate::model::ListenAddress;

/// Protection of the HTTP server. Loopback addresses and unix sockets need none of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Args)]
pub struct SecuritySettings {
    /// Certificate chain to serve TLS with (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Accept clients with a certificate of this CA (PEM)
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,

    /// Accept clients with the bearer token in this file
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Also accept the bearer token in this file, only for reading; the page at / accepts it in a
    /// link, for displays on a wall; needs --token-file
    #[arg(long, value_name = "FILE")]
    pub view_token_file: Option<PathBuf>,

    /// Let web pages of this origin read the API in a browser, such as https://portal.example; they
    /// need the token too; repeatable
    #[arg(long = "cors-origin", value_name = "ORIGIN", value_parser = parse_origin)]
    pub cors_origins: Vec<String>,

    /// Let web pages of this origin show the page at / in a frame, such as the panel of a
    /// dashboard; repeatable
    #[arg(long = "frame-ancestor", value_name = "ORIGIN", value_parser = parse_origin)]
    pub frame_ancestors: Vec<String>,

    /// Serve other machines without TLS or without authentication
    #[arg(long)]
    pub insecure: bool,
}

impl SecuritySettings {
    /// Returns `true` if traffic is encrypted and clients have to authenticate.
    pub(super) fn encrypts_and_authenticates(&self) -> bool {
        self.tls_cert.is_some() && (self.token_file.is_some() || self.client_ca.is_some())
    }

    /// Returns `true` if clients have to present a certificate. The etcd API checks no token.
    pub(super) fn requires_client_certificates(&self) -> bool {
        self.tls_cert.is_some() && self.client_ca.is_some()
    }

    /// Checks the rules for the address of the etcd API.
    pub(super) fn check_etcd(&self, address: &ListenAddress) -> Result<(), UsageError> {
        if self.requires_client_certificates() || self.insecure {
            return Ok(());
        }
        if !address.is_local() {
            return conflict(format!(
                "other machines can reach --etcd-listen {address}: give --tls-cert, --tls-key and --client-ca; or listen on a loopback address; or allow every client to read everything with --insecure"
            ));
        }
        if self.token_file.is_some() {
            return conflict(
                "--etcd-listen does not check the token of --token-file: give --client-ca too, or allow every process on this machine to read everything there with --insecure"
                    .into(),
            );
        }
        Ok(())
    }

    /// Checks the rules between these options.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        if self.view_token_file.is_some() && self.token_file.is_none() {
            return conflict("--view-token-file needs --token-file: without it, reading needs no token".into());
        }
        match (&self.tls_cert, &self.tls_key, &self.client_ca) {
            (Some(_), None, _) => conflict("--tls-cert needs --tls-key".into()),
            (None, Some(_), _) => conflict("--tls-key needs --tls-cert".into()),
            (None, None, Some(_)) => {
                conflict("--client-ca needs --tls-cert and --tls-key, because only TLS has client certificates".into())
            }
            (Some(_), Some(_), _) | (None, None, None) => Ok(()),
        }
    }
}
