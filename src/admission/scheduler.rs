//! Scheduler of slices of work: a round robin over clients, with a queue for each client.
//!
//! [`ScanExecutor`](super::ScanExecutor) acquires a [`SlicePermit`] for each slice.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::client::Client;
use crate::handle::ScanUsage;

/// Maximum number of admitted requests. If each needs a slice of 1 ms, the last one starts after
/// 1 s on one thread. A waiting request uses about 16 KiB with its connection, 16 MB in total.
pub(super) const SCAN_COUNT_MAX: usize = 1_024;

/// Maximum number of admitted requests per client: half of all slots, so that one client cannot use
/// all of them.
pub(super) const SCANS_PER_CLIENT_MAX: usize = SCAN_COUNT_MAX / 2;

/// Round-robin scheduler. Decides which work runs next.
#[derive(Debug)]
pub(super) struct SliceScheduler {
    state: Mutex<SchedulerState>,
}

#[derive(Debug)]
struct SchedulerState {
    /// Number of unused permits. It is zero while anything waits.
    free: usize,
    /// Number of admitted requests by client.
    admitted: HashMap<Client, usize>,
    /// Number of admitted requests of all clients.
    count: usize,
    /// Queues that are not empty, in round-robin order. The first one gets the next permit.
    order: VecDeque<QueueKey>,
    queues: HashMap<QueueKey, VecDeque<oneshot::Sender<SlicePermit>>>,
    spent: ScanUsage,
}

/// Key of a queue of work: the requests or the streams of one client. With a common queue, a list
/// would wait behind up to a thousand streams of its client when all of them catch up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum QueueKey {
    Requests(Client),
    Streams(Client),
}

/// Admission of a request or a stream. Dropping it frees the slot of the request.
#[derive(Debug)]
pub(super) struct Admission {
    scheduler: Arc<SliceScheduler>,
    queue: QueueKey,
}

/// Permit to run one slice. Dropping it grants the permit to the next waiter.
#[derive(Debug)]
pub(super) struct SlicePermit(Option<Arc<SliceScheduler>>);

/// Reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScanLimitError {
    /// `SCAN_COUNT_MAX` requests are admitted.
    #[error("{SCAN_COUNT_MAX} long requests are in progress, which is the limit: try again in a few seconds")]
    Total,
    /// The client has reached its own limit.
    #[error("this client has {SCANS_PER_CLIENT_MAX} long requests in progress, which is the limit: try again in a few seconds")]
    PerClient,
}

impl SliceScheduler {
    /// Creates a scheduler with `count` permits.
    pub(super) fn new(count: usize) -> Arc<Self> {
        let (admitted, queues) = (HashMap::new(), HashMap::new());
        let state = SchedulerState { free: count, admitted, count: 0, order: VecDeque::new(), queues, spent: ScanUsage::default() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Admits a request.
    ///
    /// # Errors
    /// [`ScanLimitError`] if a limit is reached.
    pub(super) fn admit(scheduler: &Arc<Self>, client: Client) -> Result<Admission, ScanLimitError> {
        let mut state = scheduler.state();
        if state.count >= SCAN_COUNT_MAX {
            return Err(ScanLimitError::Total);
        }
        let client_count = state.admitted.entry(client).or_default();
        if *client_count >= SCANS_PER_CLIENT_MAX {
            return Err(ScanLimitError::PerClient);
        }
        *client_count += 1;
        state.count += 1;
        Ok(Admission { scheduler: Arc::clone(scheduler), queue: QueueKey::Requests(client) })
    }

    /// Admits a stream. [`super::StreamLimiter`] counts streams, so there is no limit here.
    pub(super) fn admit_stream(scheduler: &Arc<Self>, client: Client) -> Admission {
        Admission { scheduler: Arc::clone(scheduler), queue: QueueKey::Streams(client) }
    }

    pub(super) fn total_usage(&self) -> ScanUsage {
        self.state().spent
    }

    pub(super) fn admitted_count(&self) -> usize {
        self.state().count
    }

    fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants a permit to the longest-waiting work of the next client, or marks it as free.
    fn grant_next(scheduler: Arc<Self>) {
        let mut permit = SlicePermit(Some(Arc::clone(&scheduler)));
        loop {
            let next = scheduler.state().next();
            let Some(next) = next else { break };
            match next.send(permit) {
                Ok(()) => return,
                // the waiting request was dropped
                Err(returned) => permit = returned,
            }
        }
        // the permit is marked as free now: dropping it must not grant it again
        permit.0 = None;
    }
}

impl SchedulerState {
    /// Removes the next waiter from its queue. Marks the permit as free if nothing waits.
    fn next(&mut self) -> Option<oneshot::Sender<SlicePermit>> {
        let Some(first) = self.order.pop_front() else {
            self.free += 1;
            return None;
        };
        let mut queue = self.queues.remove(&first).unwrap_or_default();
        let next = queue.pop_front();
        if !queue.is_empty() {
            self.queues.insert(first, queue);
            self.order.push_back(first);
        }
        // a queue in the order is never empty, so there is a waiter
        next
    }
}

impl Admission {
    /// Waits for a permit, behind the earlier waiters of the same queue and one waiter of each
    /// other queue.
    pub(super) async fn acquire_slice(&self) -> SlicePermit {
        let receiver = {
            let mut state = self.scheduler.state();
            if state.free > 0 {
                state.free -= 1;
                return SlicePermit(Some(Arc::clone(&self.scheduler)));
            }
            let (sender, receiver) = oneshot::channel();
            let queue = state.queues.entry(self.queue).or_default();
            queue.push_back(sender);
            if queue.len() == 1 {
                state.order.push_back(self.queue);
            }
            receiver
        };
        match receiver.await {
            Ok(permit) => permit,
            // a waiting sender is never dropped
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let QueueKey::Requests(client) = self.queue else { return };
        let mut state = self.scheduler.state();
        state.count -= 1;
        if let Some(client_count) = state.admitted.get_mut(&client) {
            *client_count -= 1;
            if *client_count == 0 {
                state.admitted.remove(&client);
            }
        }
    }
}

impl SlicePermit {
    /// Ends the slice and counts its work.
    pub(super) fn finish(self, spent: ScanUsage) {
        if let Some(scheduler) = &self.0 {
            scheduler.state().spent += spent;
        }
    }
}

impl Drop for SlicePermit {
    fn drop(&mut self) {
        if let Some(scheduler) = self.0.take() {
            SliceScheduler::grant_next(scheduler);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;

    use super::*;

    fn client(last: u8) -> Client {
        Client::from_ip(IpAddr::from([192, 0, 2, last]))
    }

    /// One client with a hundred requests, and another one with a single request.
    #[tokio::test]
    async fn a_client_with_many_requests_does_not_delay_another_client() {
        let scheduler = SliceScheduler::new(1);
        let admissions: Vec<Admission> = (0..100).map(|_| SliceScheduler::admit(&scheduler, client(1)).unwrap()).collect();
        let other = SliceScheduler::admit(&scheduler, client(2)).unwrap();
        let first = admissions[0].acquire_slice().await;
        let mut greedy: Vec<_> = admissions[1..].iter().map(|admission| Box::pin(admission.acquire_slice())).collect();
        assert!(greedy.iter_mut().all(|waiter| waiter.now_or_never().is_none()));
        let mut small = Box::pin(other.acquire_slice());
        assert!((&mut small).now_or_never().is_none());
        drop(first);
        let second = (&mut greedy[0]).now_or_never().unwrap();
        assert!((&mut small).now_or_never().is_none());
        drop(second);
        let third = (&mut small).now_or_never().unwrap();
        // dropped waiters are skipped
        drop(greedy.drain(1..98));
        drop(third);
        assert!((&mut greedy[1]).now_or_never().is_some());
        drop(greedy);
        let state = scheduler.state();
        assert_eq!((state.free, state.queues.len(), state.order.len()), (1, 0, 0));
    }

    #[tokio::test]
    async fn a_request_waits_for_only_one_stream_of_its_client() {
        let scheduler = SliceScheduler::new(1);
        let first = SliceScheduler::admit_stream(&scheduler, client(1)).acquire_slice().await;
        let admissions: Vec<Admission> = (0..1_000).map(|_| SliceScheduler::admit_stream(&scheduler, client(1))).collect();
        let mut streams: Vec<_> = admissions.iter().map(|admission| Box::pin(admission.acquire_slice())).collect();
        assert!(streams.iter_mut().all(|waiter| waiter.now_or_never().is_none()));
        let request = SliceScheduler::admit(&scheduler, client(1)).unwrap();
        let mut list = Box::pin(request.acquire_slice());
        assert!((&mut list).now_or_never().is_none());
        drop(first);
        drop((&mut streams[0]).now_or_never().unwrap());
        assert!((&mut list).now_or_never().is_some());
        assert_eq!(scheduler.admitted_count(), 1, "streams use no slots of requests");
    }

    #[test]
    fn one_client_gets_half_of_the_slots_and_all_are_freed() {
        let scheduler = SliceScheduler::new(1);
        let mut admissions: Vec<Admission> =
            (0..SCANS_PER_CLIENT_MAX).map(|_| SliceScheduler::admit(&scheduler, client(1)).unwrap()).collect();
        assert_eq!(SliceScheduler::admit(&scheduler, client(1)).unwrap_err(), ScanLimitError::PerClient);
        admissions.extend((0..SCANS_PER_CLIENT_MAX).map(|_| SliceScheduler::admit(&scheduler, client(2)).unwrap()));
        assert_eq!(SliceScheduler::admit(&scheduler, client(3)).unwrap_err(), ScanLimitError::Total);
        admissions.clear();
        let state = scheduler.state();
        assert_eq!((state.count, state.admitted.len()), (0, 0));
    }
}
