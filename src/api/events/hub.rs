//! Who shares bytes with whom, and when: the groups of readers, by filter and form, and the one tick that all of them have.
//!
//! One task, which runs only while there are groups, waits for changes, gives each to the groups that it may concern (found by
//! [`Facet`], so a change costs nothing for a filter that it cannot match) and wakes their readers. Ticks are spaced by what the last one
//! cost, so that writes are coalesced under load and nothing waits when it is quiet. Deliberately lacks: bytes (`group`) and
//! sockets (`reader`).

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::{Common, Group, GroupKey, Seat, Taken};
use crate::handle::{Facet, Handle, Reading, concerns_all, facets_of};
use crate::model::{Announcement, Position, Sequence};

/// What one delivery costs: 7 to 12 µs of processor time, nearly all of it the write (http.md §5.2).
const DELIVERY_COST: Duration = Duration::from_micros(10);

/// Deliveries may take a fifth of one core before they are spaced. With 200 readers that is a tick of 10 ms.
const SPACING_PER_COST: u32 = 5;

/// The shortest tick: what a timer can tell apart.
const TICK_MIN: Duration = Duration::from_millis(1);

/// The longest tick, reached with 1,000 readers: there 50 ms cost a quarter of what 10 ms do, at the same median delay (http.md §5.2).
const TICK_MAX: Duration = Duration::from_millis(50);

/// All groups of one face. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    shared: Arc<Shared>,
    /// The ticking task; ends with the last clone.
    ticker: Arc<Mutex<JoinSet<()>>>,
}

#[derive(Debug)]
struct Shared {
    handle: Handle,
    stop: CancellationToken,
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
    seat: Seat,
}

impl Hub {
    /// A hub without groups. Ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let shared = Shared { handle, stop, common: Arc::default(), routes: Mutex::default() };
        Self { shared: Arc::new(shared), ticker: Arc::default() }
    }

    /// Makes a reader that has everything up to `position` one of a group. `None` where that lies within what the group has already
    /// encoded as one piece: look at a newer snapshot and try again.
    pub(super) fn join(&self, key: &GroupKey, position: Sequence, reading: &Reading) -> Option<Member> {
        let mut routes = self.shared.routes();
        let woken = self.shared.route(&routes, reading);
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

    /// Whether the writer is gone or the process ends.
    pub(super) fn is_ended(&self) -> bool {
        self.shared.common.is_ended() || self.shared.stop.is_cancelled()
    }
}

impl Shared {
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
        let mut next = Instant::now();
        loop {
            tokio::time::sleep_until(next).await;
            // before the snapshot is taken, so that what comes after it makes another tick
            signal.borrow_and_update();
            let Some(woken) = self.look() else { return Followed::NoGroups };
            next = Instant::now() + spacing(woken);
            if signal.changed().await.is_err() {
                return Followed::WriterGone;
            }
        }
    }

    /// Routes what is new and wakes those that it concerns; says how many. `None` if there are no groups any more.
    fn look(&self) -> Option<usize> {
        let woken = {
            let mut routes = self.routes();
            if routes.groups.is_empty() {
                routes.ticking = false;
                return None;
            }
            match self.handle.try_reading() {
                Some(reading) => self.route(&routes, &reading),
                // each reader finds that out by itself
                None => routes.groups.values().cloned().collect(),
            }
        };
        Some(wake(&woken))
    }

    /// Gives every change up to the head of `reading` to the groups that it may concern. Returns those that must be woken.
    fn route(&self, routes: &Routes, reading: &Reading) -> Vec<Arc<Group>> {
        let (routed, head) = (self.common.routed(), reading.position().sequence);
        let mut woken = Vec::new();
        if head <= routed {
            return woken;
        }
        if !routes.groups.is_empty() {
            match reading.announced_after(routed) {
                Some(announcements) => announcements.for_each(|announcement| routes.give(announcement, &mut woken)),
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

    fn give(&self, announcement: &Arc<Announcement>, woken: &mut Vec<Arc<Group>>) {
        let mut push = |group: &Arc<Group>| {
            if group.push(announcement) {
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

fn wake(groups: &[Arc<Group>]) -> usize {
    groups.iter().map(|group| group.wake()).sum()
}

/// How long to wait after a tick that woke so many readers.
fn spacing(woken: usize) -> Duration {
    let cost = DELIVERY_COST.saturating_mul(u32::try_from(woken).unwrap_or(u32::MAX));
    cost.saturating_mul(SPACING_PER_COST).clamp(TICK_MIN, TICK_MAX)
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

    /// The position that a bookmark may carry.
    pub(super) fn bookmark(&self, reading: &Reading) -> Position {
        Position { epoch: reading.position().epoch, sequence: self.seat.position }
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
    fn ticks_are_spaced_by_how_many_they_wake() {
        let spaced = [0, 1, 20, 200, 1_000, 5_000, usize::MAX].map(|woken| spacing(woken).as_millis());
        assert_eq!(spaced, [1, 1, 1, 10, 50, 50, 50]);
    }
}
