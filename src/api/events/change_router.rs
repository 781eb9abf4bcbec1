//! Router of changes to groups of readers, with a common tick.
//!
//! Readers with the same filter and format are in one group. One task routes changes while there
//! are groups. It finds the groups of a change by [`FilterTerm`], so that a change costs nothing
//! for filters that it cannot match, and wakes the readers of these groups. The pause after a tick
//! depends on the cost of the tick: writes are coalesced under load, and changes are sent without
//! delay when there are few. While readers are still busy with the last tick, new changes are
//! merged by key (`conflation`). `group` has the encoded bytes, and `event_stream` writes them to
//! the sockets.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::conflation::{RoutedChange, conflate};
use super::group::{GroupKey, GroupMembership, GroupRead, GroupsState, StreamGroup};
use crate::handle::{FilterTerm, Follower, Handle, Reading, filter_terms_of, may_match_any_filter};
use crate::model::{Position, Sequence};

/// Cost of one delivery: 7 to 12 µs of CPU time, nearly all of it for the write
/// (docs/develop/http.md §5.2).
const DELIVERY_COST: Duration = Duration::from_micros(10);

/// Ratio of the tick to its cost: deliveries may use a fifth of one core. 200 readers have a tick
/// of 10 ms.
const PAUSE_PER_COST: u32 = 5;

/// Shortest tick: the resolution of the timer.
const TICK_MIN: Duration = Duration::from_millis(1);

/// Minimum tick if several readers are woken. A single reader gets its events within 1 ms.
///
/// Waking several readers also wakes other threads, which used a fifth of the CPU time at 3,250
/// changes/s and 1,000 filters. Changes within 5 ms are therefore sent together.
const TICK_MIN_OF_SEVERAL: Duration = Duration::from_millis(5);

/// Longest tick, reached with 5,000 readers.
///
/// With 1,000 readers, a tick of 50 ms costs a quarter of the CPU time of a tick of 10 ms at the
/// same median delay. With 5,000 readers, a tick of 250 ms delivers as many events as a tick of 50
/// ms for two thirds of the CPU time (docs/develop/http.md §5.2).
const TICK_MAX: Duration = Duration::from_millis(250);

/// Interval over which delivered chunks are counted to find out whether readers are busy: a tenth
/// of the tick of 1,000 readers.
const BUSY_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Conditions under which changes are conflated: only the newest one of each key is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConflationPolicy {
    /// Minimum number of deliveries in a tick that may overload the machine. After such a tick, the
    /// next one waits for busy readers.
    pub(crate) deliveries_min: u64,
    /// Minimum number of chunks that readers get in 5 ms while they count as busy.
    pub(crate) busy_deliveries_min: u64,
    /// Maximum time that a tick waits for busy readers, in addition to the usual pause.
    pub(crate) delay_max: Duration,
}

impl Default for ConflationPolicy {
    /// Returns the limits that are used in production.
    ///
    /// 1,000 deliveries cost 10 ms, and their tick is 50 ms. 25 chunks of 64 KiB, about 100 µs each
    /// on a busy machine, use half of one core. Below that load, all readers have their bytes long
    /// before the tick is over. A tick that waits for busy readers ends after 2 s, and a reader
    /// then gets the newest change of each key.
    fn default() -> Self {
        Self { deliveries_min: 1_000, busy_deliveries_min: 25, delay_max: Duration::from_secs(2) }
    }
}

/// Interval between checks for groups whose readers read nothing. Their pending changes use memory
/// that the feed's ring has freed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of changes that may wait for busy readers: half of a group's limit
/// ([`super::group`]).
const DELAYED_COUNT_MAX: u64 = 8_192;

/// All groups of an API. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ChangeRouter {
    state: Arc<RouterState>,
    /// The ticking task. It is aborted when the last clone of the router is dropped.
    ticker: Arc<Mutex<JoinSet<()>>>,
}

#[derive(Debug)]
struct RouterState {
    handle: Handle,
    stop: CancellationToken,
    policy: ConflationPolicy,
    groups_state: Arc<GroupsState>,
    routes: Mutex<RoutingTable>,
}

/// The existing groups, by key and by filter term.
#[derive(Debug, Default)]
struct RoutingTable {
    groups: HashMap<GroupKey, Arc<StreamGroup>>,
    groups_by_term: HashMap<FilterTerm, Vec<Arc<StreamGroup>>>,
    is_ticking: bool,
}

/// A reader in a group. Dropping it leaves the group.
#[derive(Debug)]
pub(super) struct GroupMember {
    router: ChangeRouter,
    group: Arc<StreamGroup>,
    membership: GroupMembership,
}

impl ChangeRouter {
    /// Creates a router without groups. It ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken, policy: ConflationPolicy) -> Self {
        let state = RouterState { handle, stop, policy, groups_state: Arc::default(), routes: Mutex::default() };
        Self { state: Arc::new(state), ticker: Arc::default() }
    }

    /// Adds a reader that has everything up to `position` to a group.
    ///
    /// Returns `None` if the group cannot add a reader at this position, for example inside a chunk
    /// that the group has already encoded. The caller then scans a newer snapshot and tries again.
    pub(super) fn join(&self, key: &GroupKey, position: Sequence, reading: &Reading) -> Option<GroupMember> {
        let mut routes = self.state.routes();
        let woken = self.state.route(&routes, reading, RoutingMode::AllChanges);
        let groups_state = &self.state.groups_state;
        let known = routes.groups.get(key).cloned();
        let group = known.clone().unwrap_or_else(|| Arc::new(StreamGroup::new(key.clone(), Arc::clone(groups_state))));
        let membership = group.join(position, reading);
        if membership.is_some() && known.is_none() {
            routes.add(&group);
        }
        if membership.is_some() && !routes.is_ticking {
            routes.is_ticking = true;
            self.start_ticking();
        }
        drop(routes);
        wake(&woken);
        membership.map(|membership| GroupMember { router: self.clone(), group, membership })
    }

    /// Starts the ticking task. The previous task, if any, has set `is_ticking` to false and is
    /// about to end.
    fn start_ticking(&self) {
        let mut ticker = self.ticker.lock().unwrap_or_else(PoisonError::into_inner);
        while ticker.try_join_next().is_some() {}
        ticker.spawn(Arc::clone(&self.state).run());
    }

    /// Returns the number of changes by which the slowest reader of any group is behind `head`.
    pub(crate) fn lag(&self, head: Sequence) -> u64 {
        self.state.routes().groups.values().map(|group| group.lag(head)).max().unwrap_or_default()
    }

    /// Returns the high-water marks of the groups' queues by name: changes that wait to be encoded
    /// in one group, and encoded bytes that all groups retain for slower readers.
    pub(crate) fn queue_marks(&self) -> [(&'static str, usize); 2] {
        let groups_state = &self.state.groups_state;
        let [pending, retained] = [&groups_state.pending_mark, &groups_state.retained_mark].map(|mark| mark.load(Ordering::Relaxed));
        [("stream_pending", pending), ("stream_retained_bytes", retained)]
    }

    /// Returns the number of events encoded for groups.
    pub(crate) fn encoded_count(&self) -> u64 {
        self.state.groups_state.encoded.load(Ordering::Relaxed)
    }

    /// Returns the number of changes that were not sent, because a newer change of the same key
    /// replaced them while readers were busy.
    pub(crate) fn merged_count(&self) -> u64 {
        self.state.groups_state.merged.load(Ordering::Relaxed)
    }

    /// Returns whether the writer has ended or the process stops.
    pub(super) fn is_ended(&self) -> bool {
        self.state.groups_state.is_ended() || self.state.stop.is_cancelled()
    }
}

impl RouterState {
    fn routes(&self) -> MutexGuard<'_, RoutingTable> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ticks until no group is left, the writer has ended, or the process stops.
    async fn run(self: Arc<Self>) {
        if self.stop.run_until_cancelled(self.route_until_ended()).await == Some(RoutingEnd::NoGroups) {
            return;
        }
        self.groups_state.ended.store(true, Ordering::Release);
        let groups: Vec<Arc<StreamGroup>> = self.routes().groups.values().cloned().collect();
        wake(&groups);
    }

    async fn route_until_ended(&self) -> RoutingEnd {
        let Ok(mut signal) = self.handle.signal().await else { return RoutingEnd::WriterEnded };
        let (mut next, mut deliveries, mut delivered) = (Instant::now(), 0, self.groups_state.delivered_count());
        let mut swept = next;
        loop {
            tokio::time::sleep_until(next).await;
            if swept.elapsed() >= SWEEP_INTERVAL {
                self.sweep();
                swept = Instant::now();
            }
            let mode = if deliveries < self.policy.deliveries_min { RoutingMode::AllChanges } else { self.wait_for_busy_readers().await };
            // marked as seen before the snapshot is taken, so that later changes cause another tick
            signal.borrow_and_update();
            let Some(woken) = self.route_new_changes(mode) else { return RoutingEnd::NoGroups };
            let delivered_before = std::mem::replace(&mut delivered, self.groups_state.delivered_count());
            deliveries = (delivered - delivered_before).max(woken);
            next = Instant::now() + tick_pause(deliveries);
            if signal.changed().await.is_err() {
                return RoutingEnd::WriterEnded;
            }
        }
    }

    /// Waits while readers are busy with the chunks of earlier ticks, because more chunks would
    /// only queue.
    ///
    /// Changes during the wait are conflated. Readers that read nothing do not count as busy, so no
    /// tick waits for them.
    async fn wait_for_busy_readers(&self) -> RoutingMode {
        let (began, mut mode) = (Instant::now(), RoutingMode::AllChanges);
        while began.elapsed() < self.policy.delay_max && self.unrouted_count() < DELAYED_COUNT_MAX {
            let before = self.groups_state.delivered_count();
            tokio::time::sleep(BUSY_CHECK_INTERVAL).await;
            if self.groups_state.delivered_count() - before < self.policy.busy_deliveries_min {
                break;
            }
            mode = RoutingMode::NewestPerKey;
        }
        mode
    }

    /// Returns the number of changes that are not routed yet.
    fn unrouted_count(&self) -> u64 {
        let head = self.handle.try_reading().map(|reading| reading.position().sequence);
        head.map_or(0, |head| head.0.saturating_sub(self.groups_state.routed().0))
    }

    /// Routes new changes and wakes the readers of the matching groups. Returns the number of woken
    /// readers, or `None` if there are no groups left.
    fn route_new_changes(&self, mode: RoutingMode) -> Option<u64> {
        let woken = {
            let mut routes = self.routes();
            if routes.groups.is_empty() {
                routes.is_ticking = false;
                return None;
            }
            match self.handle.try_reading() {
                Some(reading) => self.route(&routes, &reading, mode),
                // each reader notices the missing snapshot itself
                None => routes.groups.values().cloned().collect(),
            }
        };
        Some(wake(&woken))
    }

    /// Drops pending changes that the feed's ring no longer has.
    fn sweep(&self) {
        let Some(reading) = self.handle.try_reading() else { return };
        let oldest = reading.announced_from();
        let behind: Vec<Arc<StreamGroup>> =
            self.routes().groups.values().filter(|group| group.discard_if_behind(oldest)).cloned().collect();
        wake(&behind);
    }

    /// Routes every change up to the head of `reading` to the groups that it may match. Returns the
    /// groups to wake.
    fn route(&self, routes: &RoutingTable, reading: &Reading, mode: RoutingMode) -> Vec<Arc<StreamGroup>> {
        let (routed, head) = (self.groups_state.routed(), reading.position().sequence);
        let mut woken = Vec::new();
        if head <= routed {
            return woken;
        }
        if !routes.groups.is_empty() {
            match Follower::at(routed).each_change(reading) {
                Some(announcements) => match mode {
                    RoutingMode::AllChanges => {
                        announcements.for_each(|announcement| routes.push(&RoutedChange::single(announcement), &mut woken))
                    }
                    RoutingMode::NewestPerKey => {
                        let newest = conflate(routed, announcements);
                        self.groups_state.merged.fetch_add(head.0 - routed.0 - newest.len() as u64, Ordering::Relaxed);
                        newest.iter().for_each(|routed| routes.push(routed, &mut woken));
                    }
                },
                None => {
                    routes.groups.values().for_each(|group| group.discard_all(head));
                    woken.extend(routes.groups.values().cloned());
                }
            }
        }
        self.groups_state.set_routed(head);
        woken
    }
}

/// Selection of the changes that are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoutingMode {
    /// Every change.
    AllChanges,
    /// Only the newest change of each key.
    NewestPerKey,
}

/// Reason why the routing task ended.
#[derive(Debug, PartialEq, Eq)]
enum RoutingEnd {
    NoGroups,
    WriterEnded,
}

impl RoutingTable {
    fn add(&mut self, group: &Arc<StreamGroup>) {
        self.groups.insert(group.key.clone(), Arc::clone(group));
        for term in group.key.filter.terms() {
            self.groups_by_term.entry(term).or_default().push(Arc::clone(group));
        }
    }

    fn remove(&mut self, group: &Arc<StreamGroup>) {
        self.groups.remove(&group.key);
        for term in group.key.filter.terms() {
            if let Some(groups) = self.groups_by_term.get_mut(&term) {
                groups.retain(|other| !Arc::ptr_eq(other, group));
                if groups.is_empty() {
                    self.groups_by_term.remove(&term);
                }
            }
        }
    }

    fn push(&self, routed: &RoutedChange, woken: &mut Vec<Arc<StreamGroup>>) {
        let announcement = &*routed.announcement;
        let mut push = |group: &Arc<StreamGroup>| {
            if group.push(routed) {
                woken.push(Arc::clone(group));
            }
        };
        if may_match_any_filter(announcement) {
            self.groups.values().for_each(&mut push);
            return;
        }
        filter_terms_of(announcement, |term| self.groups_by_term.get(term).into_iter().flatten().for_each(&mut push));
    }
}

fn wake(groups: &[Arc<StreamGroup>]) -> u64 {
    groups.iter().map(|group| group.wake() as u64).sum()
}

/// Returns the pause after a tick with this number of deliveries.
fn tick_pause(deliveries: u64) -> Duration {
    let cost = DELIVERY_COST.saturating_mul(u32::try_from(deliveries).unwrap_or(u32::MAX));
    let several = TICK_MIN.saturating_mul(u32::try_from(deliveries).unwrap_or(u32::MAX)).min(TICK_MIN_OF_SEVERAL);
    cost.saturating_mul(PAUSE_PER_COST).max(several).clamp(TICK_MIN, TICK_MAX)
}

impl GroupMember {
    pub(super) fn position(&self) -> Sequence {
        self.membership.position
    }

    /// Returns the reader's next bytes. After [`GroupRead::Pending`], the task is woken when there
    /// are more.
    pub(super) fn read(&mut self, waker: &std::task::Waker) -> GroupRead {
        let handle = &self.router.state.handle;
        self.group.read(&mut self.membership, waker, || handle.try_reading())
    }

    /// Returns the position for a bookmark; `None` inside a conflated range.
    pub(super) fn bookmark(&self, reading: &Reading) -> Option<Position> {
        self.membership.is_complete.then(|| Position { epoch: reading.position().epoch, sequence: self.membership.position })
    }

    /// Returns the key of the group.
    pub(super) fn key(&self) -> &GroupKey {
        &self.group.key
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        let mut routes = self.router.state.routes();
        if self.group.leave(&self.membership) {
            routes.remove(&self.group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_a_tick_depends_on_its_deliveries() {
        let pauses = [0, 1, 3, 20, 100, 200, 1_000, 5_000, u64::MAX].map(|deliveries| tick_pause(deliveries).as_millis());
        assert_eq!(pauses, [1, 1, 3, 5, 5, 10, 50, 250, 250]);
    }
}
