//! Webhook of `--on-problem`: a `POST` for each finding that appears or is resolved.
//!
//! There is no queue. The current findings are compared with those that the receiver has accepted
//! ([`Outstanding`]), and the differences are posted one at a time. A slow or unavailable receiver
//! costs no more memory than the findings themselves, and gets the current findings once it
//! answers; a finding that appeared and was resolved meanwhile is not posted. Nothing waits for a
//! receiver.

mod outstanding;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::sleep;

use self::outstanding::{Outstanding, PendingPost};
use crate::dto::problems::Finding;
use crate::dto::text::rfc3339;
use crate::model::{Backoff, EntryKey, Object, SecretUrl};

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum time of a request, connecting included. A later answer does not count, and the finding
/// is posted again.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Pause between two posts: ten per second, so that many simultaneous findings do not flood the
/// receiver.
const PACE: Duration = Duration::from_millis(100);

/// Wait after the first failed post. Each further failure doubles it.
const BACKOFF_MIN: Duration = Duration::from_secs(1);

/// Maximum wait after a failure: a receiver that is available again gets the findings within a
/// minute.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Maximum wait that a receiver may request with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// Current findings by their keys in the change stream.
type Standing = BTreeMap<EntryKey, Arc<Object>>;

/// Findings to post, and counters of the results. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct WebhookState(Arc<WebhookQueue>);

#[derive(Debug, Default)]
struct WebhookQueue {
    standing: watch::Sender<Arc<Standing>>,
    taken: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicU64,
}

impl WebhookState {
    /// Sets the current findings. Copies them only if a sender runs.
    pub(super) fn show(&self, standing: &Standing) {
        if self.0.standing.receiver_count() > 0 {
            self.0.standing.send_replace(Arc::new(standing.clone()));
        }
    }

    /// Returns the number of posts by result, and the number of findings that wait.
    pub(crate) fn counts(&self) -> ([(&'static str, u64); 3], u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let WebhookQueue { taken, failed, refused, waiting, .. } = &*self.0;
        ([("accepted", count(taken)), ("failed", count(failed)), ("refused", count(refused))], count(waiting))
    }
}

/// JSON body of a post.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    event: &'static str,
    time: String,
    finding: Finding,
    meshkeep: Sender<'a>,
}

/// Identification of the sender. After a restart all findings are posted again.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sender<'a> {
    version: &'static str,
    started_at: &'a str,
}

/// Result of a post.
enum Delivery {
    Taken,
    /// The receiver will never accept the finding, for this reason.
    Refused(String),
    /// The post may succeed later: the reason, and the wait that the receiver requests.
    Failed(String, Option<Duration>),
}

/// Error: the URL of `--on-problem` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use --on-problem {shown}: {reason}")]
pub struct OnProblemError {
    /// URL without its secret parts.
    shown: String,
    reason: String,
}

/// HTTP client for one receiver.
#[derive(Debug)]
pub(crate) struct Poster {
    client: Client,
    url: Url,
    shown: String,
}

impl Poster {
    /// Creates the client without connecting.
    ///
    /// # Errors
    /// [`OnProblemError`], without the secret parts of the URL.
    pub(crate) fn new(url: &SecretUrl) -> Result<Self, OnProblemError> {
        let shown = url.shown();
        let refused = |reason: String| OnProblemError { shown: shown.clone(), reason };
        let parsed = Url::parse(url.whole()).map_err(|error| refused(format!("it is not a URL ({error})")))?;
        // reqwest needs a provider for plain HTTP too; the call fails only if one is installed
        // already
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        // no connection is kept open: there are minutes between two posts, and a post over a
        // connection that the receiver has closed would fail
        let mut builder = Client::builder().connect_timeout(CONNECT_TIME_MAX).timeout(ANSWER_TIME_MAX).pool_max_idle_per_host(0);
        builder = builder.redirect(Policy::none()).no_proxy();
        if parsed.scheme() == "https" {
            let system = rustls_native_certs::load_native_certs().certs;
            for certificate in system.iter().filter_map(|certificate| Certificate::from_der(certificate).ok()) {
                builder = builder.add_root_certificate(certificate);
            }
        }
        let client = builder.build().map_err(|error| refused(reason(error)))?;
        Ok(Self { client, url: parsed, shown })
    }

    /// WebhookState findings that appear or are resolved, until it is dropped.
    pub(crate) async fn run(self, posts: WebhookState, uptime: Duration) {
        let started_at = rfc3339(SystemTime::now().checked_sub(uptime).unwrap_or(SystemTime::UNIX_EPOCH));
        let (board, mut standing) = (&posts.0, posts.0.standing.subscribe());
        let (mut outstanding, mut backoff) = (Outstanding::default(), Backoff::new(BACKOFF_MIN, BACKOFF_MAX));
        loop {
            let now = Arc::clone(&standing.borrow_and_update());
            board.waiting.store(outstanding.count(&now), Ordering::Relaxed);
            let Some(change) = outstanding.next(&now) else {
                if standing.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let (wait, counter) = match self.post(&change, &started_at).await {
                Delivery::Taken => {
                    if backoff.failures() > 0 {
                        tracing::info!(receiver = self.shown, "findings are being posted again");
                    }
                    backoff.reset();
                    outstanding.settle(change);
                    (PACE, &board.taken)
                }
                Delivery::Refused(why) => {
                    tracing::warn!(receiver = self.shown, finding = %change.key, why, "the receiver of --on-problem refused a finding, which is not sent again");
                    outstanding.settle(change);
                    (PACE, &board.refused)
                }
                Delivery::Failed(why, asked) => {
                    if backoff.failures() == 0 {
                        tracing::warn!(receiver = self.shown, why, "cannot post a finding: trying again, at least once a minute");
                    }
                    outstanding.fail(change);
                    (backoff.next_wait().max(asked.unwrap_or_default()), &board.failed)
                }
            };
            counter.fetch_add(1, Ordering::Relaxed);
            sleep(wait).await;
        }
    }

    async fn post(&self, change: &PendingPost, started_at: &str) -> Delivery {
        let Some(finding) = change.object.as_finding() else { return Delivery::Refused("it is not a finding".to_owned()) };
        let body = Body {
            event: if change.is_there { "appeared" } else { "gone" },
            time: rfc3339(SystemTime::now()),
            finding: Finding::from(finding),
            meshkeep: Sender { version: env!("CARGO_PKG_VERSION"), started_at },
        };
        let Ok(body) = serde_json::to_vec(&body) else { return Delivery::Refused("it cannot be encoded as JSON".to_owned()) };
        let request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        let request = request.header(USER_AGENT, concat!("meshkeep/", env!("CARGO_PKG_VERSION"))).body(body);
        match request.send().await {
            Ok(response) => outcome(&response),
            Err(error) => Delivery::Failed(reason(error), None),
        }
    }
}

/// Returns the result that a response stands for. A receiver that refuses a finding would refuse it
/// again, except with the statuses that ask for a later attempt (RFC 9110 §15.5.9, RFC 6585 §4).
fn outcome(response: &Response) -> Delivery {
    let status = response.status();
    if status.is_success() {
        return Delivery::Taken;
    }
    let passes = matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS);
    if status.is_server_error() || passes {
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        return Delivery::Failed(format!("it answers {status}"), asked.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX)));
    }
    Delivery::Refused(format!("it answers {status}"))
}

/// Returns the text of a client error and its causes, without the URL.
fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}
