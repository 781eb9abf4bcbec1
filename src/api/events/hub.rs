//! Who shares bytes with whom, and when: the groups of readers, by filter and form, and the one tick that all of them have.
//!
//! One task, which runs only while there are groups, waits for changes, gives each to the groups that it may concern (found by
//! [`Facet`], so a change costs nothing for a filter that it cannot match) and wakes their readers. Ticks are spaced by what the last one
//! cost, so that writes are coalesced under load and nothing waits when it is quiet; where readers are still busy with the last one, what
//! comes meanwhile is merged by key (`wave`). Deliberately lacks: bytes (`group`) and
//! sockets (`reader`).

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::{Common, Group, GroupKey, Membership, Taken};
use super::wave::{Routed, conflate};
use crate::handle::{Facet, Handle, Reading, concerns_all, facets_of};
use crate::model::{Position, Sequence};

/// What one delivery costs: 7 to 12 µs of processor time, nearly all of it the write (docs/develop/http.md §5.2).
const DELIVERY_COST: Duration = Duration::from_micros(10);

/// Deliveries may take a fifth of one core before they are spaced. With 200 readers that is a tick of 10 ms.
const SPACING_PER_COST: u32 = 5;

/// The shortest tick: what a timer can tell apart.
const TICK_MIN: Duration = Duration::from_millis(1);

/// A tick that wakes several readers also wakes the other threads, which was a fifth of the time at 3,250 changes/s for 1,000 filters: what
/// comes within 5 ms goes out together. A single reader is told within 1 ms.
const TICK_OF_SEVERAL: Duration = Duration::from_millis(5);

/// The longest tick, reached with 5,000 readers. With 1,000 it is 50 ms, which cost a quarter of what 10 ms do at the same median
/// delay, and with 5,000 this delivers as many events as 50 ms do for two thirds of the processor time (docs/develop/http.md §5.2).
const TICK_MAX: Duration = Duration::from_millis(250);

/// How long readers are looked at to see whether they are busy: a tenth of the tick that so many have.
const TAKERS_STEP: Duration = Duration::from_millis(5);

/// When changes are merged into waves instead of being told one by one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// From so many deliveries in a tick on, readers may be too many for the machine.
    pub(crate) deliveries_min: u64,
    /// Readers are busy if so many take bytes in 5 ms.
    pub(crate) busy_takers_min: u64,
    /// How much longer than its spacing a tick may wait for busy readers.
    pub(crate) late_max: Duration,
}

impl Default for Patience {
    /// 1,000 deliveries cost 10 ms, and their tick is 50 ms. 25 pieces of 64 KiB, some 100 µs each on a busy machine, are half of one core,
    /// and readers that are not too many have taken all that they lack long before the tick is over. After 2 s a reader is sent each key
    /// once in that time.
    fn default() -> Self {
        Self { deliveries_min: 1_000, busy_takers_min: 25, late_max: Duration::from_secs(2) }
    }
}

/// How often groups are looked at whose readers take nothing: what waits for them keeps memory that the feed's ring has given up.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How many changes may wait for that: half of what a group takes before it gives up ([`super::group`]).
const LATE_COUNT_MAX: u64 = 8_192;

/// All groups of one face. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    shared: Arc<HubState>,
    /// The ticking task; ends with the last clone.
    ticker: Arc<Mutex<JoinSet<()>>>,
}

#[derive(Debug)]
struct HubState {
    handle: Handle,
    stop: CancellationToken,
    patience: Patience,
    common: Arc<Common>,
    routes: Mutex<Routes>,
}

/// Which groups there are.
#[derive(Debug, Default)]
struct Routes {
    groups: HashMap<GroupKey, Arc<Group>>,
    by_facet: HashMap<Facet, Vec<Arc<Group>>>,
    ticking: bool,
}

/// One reader in a group.
#[derive(Debug)]
pub(super) struct Member {
    hub: Hub,
    group: Arc<Group>,
    seat: Membership,
}

impl Hub {
    /// A hub without groups. Ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken, patience: Patience) -> Self {
        let shared = HubState { handle, stop, patience, common: Arc::default(), routes: Mutex::default() };
        Self { shared: Arc::new(shared), ticker: Arc::default() }
    }

    /// Makes a reader that has everything up to `position` one of a group. `None` where that lies within what the group has already
    /// encoded as one piece: look at a newer snapshot and try again.
    pub(super) fn join(&self, key: &GroupKey, position: Sequence, reading: &Reading) -> Option<Member> {
        let mut routes = self.shared.routes();
        let woken = self.shared.route(&routes, reading, Manner::Each);
        let common = &self.shared.common;
        let known = routes.groups.get(key).cloned();
        let group = known.clone().unwrap_or_else(|| Arc::new(Group::new(key.clone(), Arc::clone(common))));
        let seat = group.join(position, reading);
        if seat.is_some() && known.is_none() {
            routes.add(&group);
        }
        if seat.is_some() && !routes.ticking {
            routes.ticking = true;
            self.tick();
        }
        drop(routes);
        wake(&woken);
        seat.map(|seat| Member { hub: self.clone(), group, seat })
    }

    /// Starts the task. The last one, if any, has said that it ends.
    fn tick(&self) {
        let mut ticker = self.ticker.lock().unwrap_or_else(PoisonError::into_inner);
        while ticker.try_join_next().is_some() {}
        ticker.spawn(Arc::clone(&self.shared).run());
    }

    /// How far the slowest reader of any group is behind `head`.
    pub(crate) fn lag(&self, head: Sequence) -> u64 {
        self.shared.routes().groups.values().map(|group| group.lag(head)).max().unwrap_or_default()
    }

    /// The most that the groups' queues ever held, by name: changes that wait to be encoded for one group, and bytes that lagging
    /// readers of all groups lack.
    pub(crate) fn queue_marks(&self) -> [(&'static str, usize); 2] {
        let common = &self.shared.common;
        let [pending, retained] = [&common.pending_mark, &common.retained_mark].map(|mark| mark.load(Ordering::Relaxed));
        [("stream_pending", pending), ("stream_retained_bytes", retained)]
    }

    /// How many events were encoded for groups.
    pub(crate) fn encoded_count(&self) -> u64 {
        self.shared.common.encoded.load(Ordering::Relaxed)
    }

    /// How many changes nobody was told of, because readers were so busy that a newer one of their key came first.
    pub(crate) fn merged_count(&self) -> u64 {
        self.shared.common.merged.load(Ordering::Relaxed)
    }

    /// Whether the writer is gone or the process ends.
    pub(super) fn is_ended(&self) -> bool {
        self.shared.common.is_ended() || self.shared.stop.is_cancelled()
    }
}

impl HubState {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ticks until there is no group left, or nothing more to come.
    async fn run(self: Arc<Self>) {
        if self.stop.run_until_cancelled(self.follow()).await == Some(Followed::NoGroups) {
            return;
        }
        self.common.ended.store(true, Ordering::Release);
        let groups: Vec<Arc<Group>> = self.routes().groups.values().cloned().collect();
        wake(&groups);
    }

    async fn follow(&self) -> Followed {
        let Ok(mut signal) = self.handle.signal().await else { return Followed::WriterGone };
        let (mut next, mut deliveries, mut taken) = (Instant::now(), 0, self.common.taken());
        let mut swept = next;
        loop {
            tokio::time::sleep_until(next).await;
            if swept.elapsed() >= SWEEP_INTERVAL {
                self.sweep();
                swept = Instant::now();
            }
            let manner = if deliveries < self.patience.deliveries_min { Manner::Each } else { self.await_takers().await };
            // before the snapshot is taken, so that what comes after it makes another tick
            signal.borrow_and_update();
            let Some(woken) = self.look(manner) else { return Followed::NoGroups };
            let taken_before = std::mem::replace(&mut taken, self.common.taken());
            deliveries = (taken - taken_before).max(woken);
            next = Instant::now() + spacing(deliveries);
            if signal.changed().await.is_err() {
                return Followed::WriterGone;
            }
        }
    }

    /// Waits while readers are busy taking what earlier ticks gave them: more on top would only queue. What comes meanwhile goes out as
    /// one wave. Readers that stand still take nothing, so nobody waits for them.
    async fn await_takers(&self) -> Manner {
        let (began, mut manner) = (Instant::now(), Manner::Each);
        while began.elapsed() < self.patience.late_max && self.routed_behind() < LATE_COUNT_MAX {
            let before = self.common.taken();
            tokio::time::sleep(TAKERS_STEP).await;
            if self.common.taken() - before < self.patience.busy_takers_min {
                break;
            }
            manner = Manner::Newest;
        }
        manner
    }

    /// How many changes wait to be routed.
    fn routed_behind(&self) -> u64 {
        let head = self.handle.try_reading().map(|reading| reading.position().sequence);
        head.map_or(0, |head| head.0.saturating_sub(self.common.routed().0))
    }

    /// Routes what is new and wakes those that it concerns; says how many. `None` if there are no groups any more.
    fn look(&self, manner: Manner) -> Option<u64> {
        let woken = {
            let mut routes = self.routes();
            if routes.groups.is_empty() {
                routes.ticking = false;
                return None;
            }
            match self.handle.try_reading() {
                Some(reading) => self.route(&routes, &reading, manner),
                // each reader finds that out by itself
                None => routes.groups.values().cloned().collect(),
            }
        };
        Some(wake(&woken))
    }

    /// Gives up what waits for groups longer than the ring has it.
    fn sweep(&self) {
        let Some(reading) = self.handle.try_reading() else { return };
        let oldest = reading.announced_from();
        let behind: Vec<Arc<Group>> = self.routes().groups.values().filter(|group| group.keep_up(oldest)).cloned().collect();
        wake(&behind);
    }

    /// Gives every change up to the head of `reading` to the groups that it may concern. Returns those that must be woken.
    fn route(&self, routes: &Routes, reading: &Reading, manner: Manner) -> Vec<Arc<Group>> {
        let (routed, head) = (self.common.routed(), reading.position().sequence);
        let mut woken = Vec::new();
        if head <= routed {
            return woken;
        }
        if !routes.groups.is_empty() {
            match reading.announced_after(routed) {
                Some(announcements) => match manner {
                    Manner::Each => announcements.for_each(|announcement| routes.give(&Routed::alone(announcement), &mut woken)),
                    Manner::Newest => {
                        let newest = conflate(routed, announcements);
                        self.common.merged.fetch_add(head.0 - routed.0 - newest.len() as u64, Ordering::Relaxed);
                        newest.iter().for_each(|routed| routes.give(routed, &mut woken));
                    }
                },
                None => {
                    routes.groups.values().for_each(|group| group.give_up(head));
                    woken.extend(routes.groups.values().cloned());
                }
            }
        }
        self.common.set_routed(head);
        woken
    }
}

/// How changes are given to the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Each as it is.
    Each,
    /// The newest of each key alone.
    Newest,
}

/// Why the task ended.
#[derive(Debug, PartialEq, Eq)]
enum Followed {
    NoGroups,
    WriterGone,
}

impl Routes {
    fn add(&mut self, group: &Arc<Group>) {
        self.groups.insert(group.key.clone(), Arc::clone(group));
        for facet in group.key.filter.facets() {
            self.by_facet.entry(facet).or_default().push(Arc::clone(group));
        }
    }

    fn remove(&mut self, group: &Arc<Group>) {
        self.groups.remove(&group.key);
        for facet in group.key.filter.facets() {
            if let Some(groups) = self.by_facet.get_mut(&facet) {
                groups.retain(|other| !Arc::ptr_eq(other, group));
                if groups.is_empty() {
                    self.by_facet.remove(&facet);
                }
            }
        }
    }

    fn give(&self, routed: &Routed, woken: &mut Vec<Arc<Group>>) {
        let announcement = &*routed.announcement;
        let mut push = |group: &Arc<Group>| {
            if group.push(routed) {
                woken.push(Arc::clone(group));
            }
        };
        if concerns_all(announcement) {
            self.groups.values().for_each(&mut push);
            return;
        }
        facets_of(announcement, |facet| self.by_facet.get(facet).into_iter().flatten().for_each(&mut push));
    }
}

fn wake(groups: &[Arc<Group>]) -> u64 {
    groups.iter().map(|group| group.wake() as u64).sum()
}

/// How long to wait after a tick with so many deliveries.
fn spacing(deliveries: u64) -> Duration {
    let cost = DELIVERY_COST.saturating_mul(u32::try_from(deliveries).unwrap_or(u32::MAX));
    let several = TICK_MIN.saturating_mul(u32::try_from(deliveries).unwrap_or(u32::MAX)).min(TICK_OF_SEVERAL);
    cost.saturating_mul(SPACING_PER_COST).max(several).clamp(TICK_MIN, TICK_MAX)
}

impl Member {
    pub(super) fn position(&self) -> Sequence {
        self.seat.position
    }

    /// What the reader lacks next, or [`Taken::Nothing`]: then its task is woken when there is more.
    pub(super) fn take(&mut self, waker: &std::task::Waker) -> Taken {
        let handle = &self.hub.shared.handle;
        self.group.take(&mut self.seat, waker, || handle.try_reading())
    }

    /// The position that a bookmark may carry; `None` in the middle of a wave.
    pub(super) fn bookmark(&self, reading: &Reading) -> Option<Position> {
        self.seat.settled.then(|| Position { epoch: reading.position().epoch, sequence: self.seat.position })
    }

    /// What it shares.
    pub(super) fn key(&self) -> &GroupKey {
        &self.group.key
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut routes = self.hub.shared.routes();
        if self.group.leave(&self.seat) {
            routes.remove(&self.group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_spaced_by_what_they_deliver() {
        let spaced = [0, 1, 3, 20, 100, 200, 1_000, 5_000, u64::MAX].map(|deliveries| spacing(deliveries).as_millis());
        assert_eq!(spaced, [1, 1, 3, 5, 5, 10, 50, 250, 250]);
    }
}
