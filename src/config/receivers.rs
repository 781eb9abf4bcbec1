//! Settings of the receivers of findings and traces.

use clap::Args;

use super::{UsageError, conflict, parse_secret_url, parse_webhook_format};
use crate::model::{SecretUrl, WebhookFormat};

/// Receivers to which a running sidecar connects.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ReceiverSettings {
    /// POST each finding of /v1/problems that appears or is resolved to this http:// or https://
    /// address; if its path is a secret, use MESHKEEP_ON_PROBLEM, which the process list does not
    /// show
    #[arg(long, value_name = "URL", value_parser = parse_secret_url)]
    pub on_problem: Option<SecretUrl>,

    /// Format of these posts: json, alertmanager (alerts for /api/v2/alerts of an Alertmanager) or
    /// cloudevents (CloudEvents 1.0)
    #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = parse_webhook_format)]
    pub on_problem_format: WebhookFormat,

    /// Send traces of requests, connection attempts and store writes over OTLP/HTTP to this http://
    /// or https:// address, without /v1/traces; if it contains a secret, use
    /// MESHKEEP_OTLP_ENDPOINT
    #[arg(long, value_name = "URL", value_parser = parse_secret_url)]
    pub otlp_endpoint: Option<SecretUrl>,
}

impl ReceiverSettings {
    pub(super) fn check(&self) -> Result<(), UsageError> {
        for (name, url) in [("--on-problem", &self.on_problem), ("--otlp-endpoint", &self.otlp_endpoint)] {
            if url.as_ref().is_some_and(|url| !url.is_usable()) {
                return conflict(format!("{name} must be a URL with http:// or https:// and a host"));
            }
        }
        Ok(())
    }
}
