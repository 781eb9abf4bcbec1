//! Limits of a connection: timeouts, sizes and rates.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Limits of one connection. The defaults are Cilium's, where Cilium has such a limit
/// (`pkg/kvstore/etcd.go`, `pkg/defaults`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// Maximum silence of the server on an open watch or call before it is pinged. Cilium: 15 s.
    pub keepalive_heartbeat: Duration,
    /// Maximum time to wait for the response to a ping before the connection counts as broken.
    /// Cilium: 25 s.
    pub keepalive_timeout: Duration,
    /// Maximum time to open the connection: name resolution, TCP, TLS and HTTP/2. Default 10 s: if
    /// there was no answer by then, three SYNs (at 0, 1 and 3 s) were lost. Cilium allows its
    /// status checks the same time.
    pub connect_timeout: Duration,
    /// Maximum time to wait for one reply. Default 30 s: the largest allowed message needs 27 s at
    /// 10 Mbit/s, and an etcd with a million keys needs 6 to 9 s after a restart.
    pub request_timeout: Duration,
    /// Interval of progress requests on the watch stream, which limits the precision of ages.
    /// Default 10 s: a request has a few bytes, and 10 s is short compared with the minute between
    /// heartbeats.
    pub progress_interval: Duration,
    /// Keys per page of a list; 0 means unlimited. Cilium (`etcd.limit`): 256.
    pub page_limit: i64,
    /// True to read lists as a stream if the server supports it (etcd 3.7, `KV/RangeStream`).
    /// etcd counts the remaining range for each page, but only once for a stream.
    pub range_stream: bool,
    /// Lists and new watches per second, and also the size of a burst. Cilium (`etcd.qps`): 20.
    pub requests_per_second_max: u32,
    /// Lists and new watches per second until the caller has listed everything once; `None` for the
    /// usual rate. Cilium's `etcd.bootstrapQps`.
    pub bootstrap_requests_per_second_max: Option<u32>,
    /// Maximum concurrent calls. Cilium (`etcd.maxInflight`): the same as `etcd.qps`.
    pub requests_in_flight_max: usize,
    /// Maximum size of a message, and therefore the memory that one reply may use. Default 32 MiB:
    /// etcd accepts requests of up to 1.5 MiB by default and warns above 10 MiB
    /// (`embed.recommendedMaxRequestBytes`), so this is three times the largest value of any
    /// reasonable server.
    pub message_bytes_max: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            keepalive_heartbeat: Duration::from_secs(15),
            keepalive_timeout: Duration::from_secs(25),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            progress_interval: Duration::from_secs(10),
            page_limit: 256,
            range_stream: true,
            requests_per_second_max: 20,
            bootstrap_requests_per_second_max: None,
            requests_in_flight_max: 20,
            message_bytes_max: 32 << 20,
        }
    }
}

/// Token bucket with a rate per second and a burst of the same size.
///
/// Until [`RateLimiter::end_bootstrap`] is called, the rate may be higher, but the burst is always
/// the normal one (Cilium's `pkg/kvstore/etcd.go`).
#[derive(Debug)]
pub(crate) struct RateLimiter {
    burst: u32,
    bucket: Mutex<TokenBucket>,
}

#[derive(Debug)]
struct TokenBucket {
    interval: Duration,
    /// Time at which the next token would be due if there were no bursts (GCRA's theoretical
    /// arrival time).
    next_due: Instant,
}

impl RateLimiter {
    /// Creates a bucket. The rate is at least one per second: with zero no call would ever run.
    pub(crate) fn new(per_second_max: u32, bootstrap: Option<u32>) -> Self {
        let interval = Duration::from_secs(1) / bootstrap.unwrap_or(per_second_max).max(1);
        Self { burst: per_second_max.max(1), bucket: Mutex::new(TokenBucket { interval, next_due: Instant::now() }) }
    }

    /// Switches from the bootstrap rate to the normal rate.
    pub(crate) fn end_bootstrap(&self) {
        self.bucket().interval = Duration::from_secs(1) / self.burst;
    }

    fn bucket(&self) -> MutexGuard<'_, TokenBucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a token, in the order of the calls.
    pub(crate) async fn acquire(&self) {
        tokio::time::sleep_until(self.reserve()).await;
    }

    fn reserve(&self) -> Instant {
        let now = Instant::now();
        let mut bucket = self.bucket();
        let start = bucket.next_due.max(now);
        bucket.next_due = start + bucket.interval;
        // in a burst, a call may run up to `burst - 1` intervals before its token is due
        start.checked_sub(bucket.interval * (self.burst - 1)).map_or(now, |earliest| earliest.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_does_not_wait_and_later_calls_do() {
        let limiter = RateLimiter::new(20, None);
        let start = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..23 {
            limiter.acquire().await;
            waits.push(start.elapsed().as_millis());
        }
        let mut expected = vec![0; 20];
        expected.extend([50, 100, 150]);
        // tokio's clock has steps of a millisecond, and its timers may be one late
        let rounded: Vec<u128> = waits.iter().map(|wait| wait / 10 * 10).collect();
        assert_eq!(rounded, expected);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let start = Instant::now();
        for _ in 0..20 {
            limiter.acquire().await;
        }
        assert!(start.elapsed() < Duration::from_millis(10), "an idle bucket refills to one burst, not more");
        limiter.acquire().await;
        assert!(start.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test(start_paused = true)]
    async fn the_bootstrap_rate_has_the_same_burst() {
        let limiter = RateLimiter::new(10, Some(100));
        let start = Instant::now();
        for _ in 0..60 {
            limiter.acquire().await;
        }
        let fast = start.elapsed().as_millis();
        assert!((500..=520).contains(&fast), "50 calls after the burst, at 100 per second: {fast} ms");
        limiter.end_bootstrap();
        let start = Instant::now();
        for _ in 0..20 {
            limiter.acquire().await;
        }
        assert!(start.elapsed() >= Duration::from_secs(1), "10 calls after the burst, at 10 per second");
    }
}
