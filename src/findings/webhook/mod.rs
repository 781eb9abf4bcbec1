//! Webhook of `--on-problem`: a `POST` for each finding that appears or is resolved.
//!
//! There is no queue. The current findings are compared with those that the receiver has accepted
//! ([`DeliveredFindings`]), and the differences are posted one at a time. A slow or unavailable
//! receiver costs no more memory than the findings themselves, and gets the current findings once
//! it answers; a finding that appeared and was resolved meanwhile is not posted. Nothing waits for
//! a receiver. For an Alertmanager, findings that last are posted again every five minutes.

mod body;
mod delivered;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use reqwest::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response, StatusCode, Url};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use self::delivered::{DeliveredFindings, PendingPost};
use crate::dto::text::rfc3339;
use crate::files::system_certificates;
use crate::model::{Backoff, EntryKey, Object, SecretUrl, WebhookFormat};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time of a request, connecting included. A later answer does not count, and the finding
/// is posted again.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two posts: ten per second, so that many simultaneous findings do not flood the
/// receiver.
const POST_INTERVAL: Duration = Duration::from_millis(100);

/// Wait after the first failed post. Each further failure doubles it.
const BACKOFF_MIN: Duration = Duration::from_secs(1);

/// Maximum wait after a failure: a receiver that is available again gets the findings within a
/// minute.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Maximum wait that a receiver may request with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// Current findings by their keys in the change stream.
type CurrentFindings = BTreeMap<EntryKey, Arc<Object>>;

/// Findings to post, and counters of the results. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct WebhookState(Arc<WebhookShared>);

#[derive(Debug, Default)]
struct WebhookShared {
    current: watch::Sender<Arc<CurrentFindings>>,
    accepted: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicU64,
}

impl WebhookState {
    /// Sets the current findings. Copies them only if a sender runs.
    pub(super) fn set_current(&self, current: &CurrentFindings) {
        if self.0.current.receiver_count() > 0 {
            self.0.current.send_replace(Arc::new(current.clone()));
        }
    }

    /// Returns the number of posts by result, and the number of findings that wait.
    pub(crate) fn counts(&self) -> ([(&'static str, u64); 3], u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let WebhookShared { accepted, failed, refused, waiting, .. } = &*self.0;
        ([("accepted", count(accepted)), ("failed", count(failed)), ("refused", count(refused))], count(waiting))
    }
}

/// Result of a post.
enum PostResult {
    Accepted,
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
pub(crate) struct WebhookSender {
    client: Client,
    url: Url,
    shown: String,
    format: WebhookFormat,
}

impl WebhookSender {
    /// Creates the client without connecting.
    ///
    /// # Errors
    /// [`OnProblemError`], without the secret parts of the URL.
    pub(crate) fn new(url: &SecretUrl, format: WebhookFormat) -> Result<Self, OnProblemError> {
        let shown = url.shown();
        let unusable = |reason: String| OnProblemError { shown: shown.clone(), reason };
        let parsed = Url::parse(url.whole()).map_err(|error| unusable(format!("it is not a URL ({error})")))?;
        // reqwest needs a provider for plain HTTP too; the call fails only if one is installed
        // already
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        // no connection is kept open: there are minutes between two posts, and a post over a
        // connection that the receiver has closed would fail
        let mut builder = Client::builder().connect_timeout(CONNECT_TIMEOUT).timeout(RESPONSE_TIMEOUT).pool_max_idle_per_host(0);
        builder = builder.redirect(Policy::none()).no_proxy();
        if parsed.scheme() == "https" {
            builder = system_certificates().into_iter().fold(builder, ClientBuilder::add_root_certificate);
        }
        let client = builder.build().map_err(|error| unusable(error_text(error)))?;
        Ok(Self { client, url: parsed, shown, format })
    }

    /// Posts findings that appear or are resolved, until the future is dropped.
    pub(crate) async fn run(self, state: WebhookState, uptime: Duration) {
        let started_at = rfc3339(SystemTime::now().checked_sub(uptime).unwrap_or(SystemTime::UNIX_EPOCH));
        let (shared, mut current) = (&state.0, state.0.current.subscribe());
        let (mut delivered, mut backoff) =
            (DeliveredFindings::new(body::repeat_interval(self.format)), Backoff::new(BACKOFF_MIN, BACKOFF_MAX));
        loop {
            let now = Arc::clone(&current.borrow_and_update());
            shared.waiting.store(delivered.pending_count(&now), Ordering::Relaxed);
            let Some(change) = delivered.next_post(&now, Instant::now()) else {
                // returns early if a finding has to be posted again meanwhile
                let wait = delivered.time_to_repeat(Instant::now());
                if let Ok(Err(_)) = timeout(wait, current.changed()).await {
                    return;
                }
                continue;
            };
            let (wait, counter) = match self.post(&change, &started_at).await {
                PostResult::Accepted => {
                    if backoff.failures() > 0 {
                        tracing::info!(receiver = self.shown, "findings are being posted again");
                    }
                    backoff.reset();
                    delivered.record_success(change, Instant::now());
                    (POST_INTERVAL, &shared.accepted)
                }
                PostResult::Refused(reason) => {
                    let is_repeated = change.has_appeared && body::repeat_interval(self.format).is_some();
                    let next = if is_repeated { "is sent again in five minutes" } else { "is not sent again" };
                    tracing::warn!(receiver = self.shown, finding = %change.key, reason, "the receiver of --on-problem refused a finding, which {next}");
                    delivered.record_success(change, Instant::now());
                    (POST_INTERVAL, &shared.refused)
                }
                PostResult::Failed(reason, retry_after) => {
                    if backoff.failures() == 0 {
                        tracing::warn!(receiver = self.shown, reason, "cannot post a finding: trying again, at least once a minute");
                    }
                    delivered.record_failure(change);
                    (backoff.next_wait().max(retry_after.unwrap_or_default()), &shared.failed)
                }
            };
            counter.fetch_add(1, Ordering::Relaxed);
            sleep(wait).await;
        }
    }

    async fn post(&self, change: &PendingPost, started_at: &str) -> PostResult {
        let Some(body) = body::encode(self.format, change, started_at, SystemTime::now()) else {
            return PostResult::Refused("it cannot be encoded as JSON".to_owned());
        };
        let request = self.client.post(self.url.clone()).header(CONTENT_TYPE, body::content_type(self.format));
        let request = request.header(USER_AGENT, concat!("meshkeep/", env!("CARGO_PKG_VERSION"))).body(body);
        match request.send().await {
            Ok(response) => classify_response(&response),
            Err(error) => PostResult::Failed(error_text(error), None),
        }
    }
}

/// Returns the result of a post from the response. A receiver that refuses a finding would refuse
/// it again, except with the statuses that ask for a later attempt (RFC 9110 §15.5.9, RFC 6585 §4).
fn classify_response(response: &Response) -> PostResult {
    let status = response.status();
    if status.is_success() {
        return PostResult::Accepted;
    }
    let is_temporary = matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS);
    if status.is_server_error() || is_temporary {
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        return PostResult::Failed(
            format!("it answers {status}"),
            retry_after.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX)),
        );
    }
    PostResult::Refused(format!("it answers {status}"))
}

/// Returns the text of a client error and its causes, without the URL.
fn error_text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}
