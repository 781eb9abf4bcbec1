//! `--on-problem`: a `POST` of each finding that appears or ends.
//!
//! There is no queue. The current findings are compared with those that the receiver has accepted
//! ([`Outstanding`]), and the differences are posted one at a time. A slow or unavailable receiver
//! costs no more memory than the findings themselves, and gets the current findings once it answers;
//! a finding that began and ended meanwhile is not posted. Nothing waits for a receiver.

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

use self::outstanding::{Change, Outstanding};
use crate::dto::problems::Finding;
use crate::dto::text::rfc3339;
use crate::model::{Backoff, EntryKey, Object, SecretUrl};

/// Maximum time to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum time of a request, connecting included. A later answer does not count, and the finding is
/// posted again.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// The pause between two posts: ten a second, so that whatever breaks at once is no flood.
const PACE: Duration = Duration::from_millis(100);

/// The first wait after a post that failed; each further one doubles it.
const BACKOFF_MIN: Duration = Duration::from_secs(1);

/// The longest wait: a receiver that is back is told within a minute.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The longest wait that a receiver may ask for by `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// What is there, by the key that the change stream has for it.
type Standing = BTreeMap<EntryKey, Arc<Object>>;

/// What is to be posted, and what became of it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Posts(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    standing: watch::Sender<Arc<Standing>>,
    taken: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicU64,
}

impl Posts {
    /// These are all that there are now. Copies them only where somebody posts them.
    pub(super) fn show(&self, standing: &Standing) {
        if self.0.standing.receiver_count() > 0 {
            self.0.standing.send_replace(Arc::new(standing.clone()));
        }
    }

    /// How many posts ended in each way, by name, and how many wait.
    pub(crate) fn counts(&self) -> ([(&'static str, u64); 3], u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Board { taken, failed, refused, waiting, .. } = &*self.0;
        ([("accepted", count(taken)), ("failed", count(failed)), ("refused", count(refused))], count(waiting))
    }
}

/// What is sent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    event: &'static str,
    time: String,
    finding: Finding,
    meshkeep: Sender<'a>,
}

/// Who sends it: another start has told nothing of what an earlier one told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sender<'a> {
    version: &'static str,
    started_at: &'a str,
}

/// What became of a post.
enum Delivery {
    Taken,
    /// It will never be taken: why.
    Refused(String),
    /// It may be, later: why not now, and when the receiver says.
    Failed(String, Option<Duration>),
}

/// Why nothing can be posted to the URL of `--on-problem`.
#[derive(Debug, thiserror::Error)]
#[error("cannot use --on-problem {shown}: {reason}")]
pub struct OnProblemError {
    /// The part of the URL that may be shown.
    shown: String,
    reason: String,
}

/// A client for one receiver.
#[derive(Debug)]
pub(crate) struct Poster {
    client: Client,
    url: Url,
    shown: String,
}

impl Poster {
    /// Sends nothing yet.
    ///
    /// # Errors
    /// [`OnProblemError`], without what of the URL is secret.
    pub(crate) fn new(url: &SecretUrl) -> Result<Self, OnProblemError> {
        let shown = url.shown();
        let refused = |reason: String| OnProblemError { shown: shown.clone(), reason };
        let parsed = Url::parse(url.whole()).map_err(|error| refused(format!("it is not a URL ({error})")))?;
        // the client asks for it also where it speaks plain HTTP; only a second one in this process would be refused
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        // no connection is kept: there are minutes between two posts, and one that the receiver closed meanwhile would cost one
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

    /// Posts what appears and goes, until it is dropped.
    pub(crate) async fn run(self, posts: Posts, uptime: Duration) {
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

    async fn post(&self, change: &Change, started_at: &str) -> Delivery {
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

/// What an answer means: a receiver that refuses one finding will refuse it again, but for those that ask for time (RFC 9110 §15.5.9, RFC 6585 §4).
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

/// Why nothing was answered, without the URL.
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
