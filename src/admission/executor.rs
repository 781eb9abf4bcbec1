//! Executor for requests and streams that need more than about a millisecond of CPU time.
//!
//! Work runs in slices on a few blocking threads. A slice needs a permit of the
//! [`scheduler`](super::scheduler), which has one for each thread. Between two slices the work
//! waits behind the slices of other clients. A short request therefore waits for one slice of each
//! other client, however much work one of them has queued. When a client disconnects, its future is
//! dropped: the slice that is running is then the last one.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::budget::{ClientShare, MemoryBudget, MemoryPermit};
use super::client::Client;
use super::scheduler::{Admission, ScanLimitError, SliceScheduler};
use crate::handle::{PAST_LIST_BYTES_MAX, ScanUsage, SliceLimit, WorkSlice};

/// Time limit of a slice.
///
/// A quick request waits for the end of a slice if the kernel scheduled its thread on the same
/// core. During twenty scans `/livez` took 3.6 ms (p99) with slices of 4 ms, and 1.9 ms with slices
/// of 1 ms (`just bench guard`). Starting the next slice costs about 30 µs (two wake-ups of
/// threads), a thirtieth of a slice. Twenty clients that all scan delay a short request by
/// 20 × 1 ms if there is one thread.
const SLICE_LIMIT: SliceLimit = SliceLimit::Time(Duration::from_millis(1));

/// Maximum time to search for the items of a page if no index covers the filter
/// (docs/use/api/paging.md). The time that the request waits for its slices does not count.
const PAGE_LIMIT: SliceLimit = SliceLimit::Time(Duration::from_secs(5));

/// Memory for all HTTP answers together: 64 of the largest pages (docs/use/api/paging.md).
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Memory for all lists of an earlier time together: 16 lists, of which one client may have eight.
const PAST_LISTS_BYTES_MAX: usize = 256 << 20;

/// Maximum time that a request waits for memory. A client that reads at 10 Mbit/s has read a 4 MiB
/// page after 3.4 s, so only stalled clients occupy memory for longer than this.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(10);

/// Limits of one slice and of one page.
#[derive(Debug, Clone, Copy)]
pub struct ScanLimits {
    /// Limit of one slice.
    pub slice: SliceLimit,
    /// Limit of one page, counted over all its slices.
    pub page: SliceLimit,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self { slice: SLICE_LIMIT, page: PAGE_LIMIT }
    }
}

/// Threads for long work, with their queue. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ScanExecutor {
    limits: ScanLimits,
    scheduler: Arc<SliceScheduler>,
    answers: Arc<MemoryBudget>,
    past_lists: Arc<MemoryBudget>,
}

/// Handle of one request or stream that does long work. Dropping it frees the slot of the request.
#[derive(Debug)]
pub(crate) struct Scanner {
    scans: ScanExecutor,
    client: Client,
    admission: Admission,
}

impl Default for ScanExecutor {
    fn default() -> Self {
        Self::new(ScanLimits::default())
    }
}

impl ScanExecutor {
    /// Creates an executor that uses half of the cores, but at least one.
    #[must_use]
    pub fn new(limits: ScanLimits) -> Self {
        // the other half of the cores answers quick requests
        let threads = thread::available_parallelism().map_or(1, NonZero::get) / 2;
        Self::with_threads(limits, threads.max(1))
    }

    /// Creates an executor with this number of threads.
    #[must_use]
    pub fn with_threads(limits: ScanLimits, threads: usize) -> Self {
        let budget = |bytes_max| MemoryBudget::new(bytes_max, ClientShare::TimesFree(1));
        let (answers, past_lists) = (budget(ANSWER_BYTES_MAX), budget(PAST_LISTS_BYTES_MAX));
        Self { limits, scheduler: SliceScheduler::new(threads), answers, past_lists }
    }

    /// Admits a request of `client` that does long work.
    ///
    /// # Errors
    /// [`ScanLimitError`] if too many such requests are being answered.
    pub(crate) fn admit(&self, client: Client) -> Result<Scanner, ScanLimitError> {
        let admission = SliceScheduler::admit(&self.scheduler, client)?;
        Ok(Scanner { scans: self.clone(), client, admission })
    }

    /// Admits a stream. It needs no slot of its own, because
    /// [`StreamLimiter`](super::StreamLimiter) limits streams.
    #[must_use]
    pub(crate) fn admit_stream(&self, client: Client) -> Scanner {
        Scanner { scans: self.clone(), client, admission: SliceScheduler::admit_stream(&self.scheduler, client) }
    }

    /// Returns the limits of one slice and of one page.
    #[must_use]
    pub const fn limits(&self) -> ScanLimits {
        self.limits
    }

    /// Returns the total work of all finished slices.
    #[must_use]
    pub fn total_usage(&self) -> ScanUsage {
        self.scheduler.total_usage()
    }

    /// Returns the number of admitted requests. Streams do not count.
    #[must_use]
    pub fn admitted_count(&self) -> usize {
        self.scheduler.admitted_count()
    }
}

impl Scanner {
    pub(crate) const fn limits(&self) -> ScanLimits {
        self.scans.limits
    }

    /// Waits until the client's share has `bytes` of memory for an answer. Returns `None` after
    /// 10 s.
    pub(crate) async fn acquire_memory(&self, bytes: usize) -> Option<MemoryPermit> {
        tokio::time::timeout(MEMORY_WAIT_MAX, MemoryBudget::acquire(&self.scans.answers, self.client, bytes)).await.ok()
    }

    /// Waits until the client's share has the memory of a list of an earlier time. The list holds
    /// the permit while it exists. Returns `None` after 10 s.
    pub(crate) async fn acquire_past_list_memory(&self) -> Option<MemoryPermit> {
        let acquire = MemoryBudget::acquire(&self.scans.past_lists, self.client, PAST_LIST_BYTES_MAX);
        tokio::time::timeout(MEMORY_WAIT_MAX, acquire).await.ok()
    }

    /// Calls `work` once per slice until it returns `Break`.
    pub(crate) async fn run<T, W>(&self, mut work: W) -> T
    where
        T: Send + 'static,
        W: FnMut(&mut WorkSlice) -> ControlFlow<T> + Send + 'static,
    {
        loop {
            let outcome;
            (outcome, work) = self.run_slice(work, |work, slice| work(slice)).await;
            if let ControlFlow::Break(done) = outcome {
                return done;
            }
        }
    }

    /// Runs `work` in one slice, however long it takes.
    pub(crate) async fn run_once<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let work = |(): &mut (), slice: &mut WorkSlice| {
            slice.count_row();
            work()
        };
        self.run_slice((), work).await.0
    }

    /// Runs `work` in one slice on the current thread. It is for work that fits into one slice and
    /// is usually much shorter, for which waking another thread would take longer.
    pub(crate) async fn run_inline<T>(&self, work: impl FnOnce(&mut WorkSlice) -> T) -> T {
        let permit = self.admission.acquire_slice().await;
        let mut slice = WorkSlice::begin(self.scans.limits.slice);
        let outcome = work(&mut slice);
        permit.finish(slice.usage());
        outcome
    }

    /// Runs `work` on `state` in one slice, and returns the state with the outcome.
    pub(crate) async fn run_slice<S, T, W>(&self, mut state: S, work: W) -> (T, S)
    where
        S: Send + 'static,
        T: Send + 'static,
        W: FnOnce(&mut S, &mut WorkSlice) -> T + Send + 'static,
    {
        let permit = self.admission.acquire_slice().await;
        let mut slice = WorkSlice::begin(self.scans.limits.slice);
        // the slice owns its permit: the thread is busy until the slice ends, even if the client
        // disconnects before
        // the log lines of the work belong to the request
        let span = tracing::Span::current();
        let working = tokio::task::spawn_blocking(move || {
            let _entered = span.entered();
            let outcome = work(&mut state, &mut slice);
            permit.finish(slice.usage());
            (outcome, state)
        });
        match working.await {
            Ok(done) => done,
            Err(failed) if failed.is_panic() => resume_unwind(failed.into_panic()),
            // blocking tasks are cancelled only when the runtime ends, and this future ends with it
            Err(_) => std::future::pending().await,
        }
    }
}
