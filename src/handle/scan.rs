//! Lists in slices. Each slice continues from a key until the page is full, no key is left, or the
//! slice is over.

mod seek;
pub(super) mod slice;

use std::net::IpAddr;

use self::seek::{Plan, Seek};
use super::{NoDecodedRoom, Reading, Slice};
use crate::model::{EntryKey, Record};
use crate::view::View;

/// End of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scanned<K = EntryKey> {
    /// No key is left.
    All,
    /// The object of this key was refused; the next page begins with it.
    Full(K),
    /// The slice is over. The scan continues with this key, which was not tested yet.
    Paused(K),
    /// There is no memory for the decoded object of this key; the next page begins with it.
    NoRoom(K, NoDecodedRoom),
}

impl Reading {
    /// Passes the objects that match a seek to `take`, from `start` on, until `take` returns false.
    pub fn scan(&self, seek: &Seek, start: Option<&EntryKey>, slice: &mut Slice, mut take: impl FnMut(&Record) -> bool) -> Scanned {
        let (filter, mut no_room) = (&seek.filter, None);
        let matching = |record: &Record| match self.room_for(record) {
            Ok(_room) => {
                let matches = record.object.as_deref().is_some_and(|object| filter.matches(&record.key, object));
                !matches || take(record)
            }
            Err(none) => {
                no_room = Some(none);
                false
            }
        };
        match (self.scan_planned(seek, start, slice, matching), no_room) {
            (Scanned::Full(key), Some(none)) => Scanned::NoRoom(key, none),
            (scanned, _) => scanned,
        }
    }

    fn scan_planned(&self, seek: &Seek, start: Option<&EntryKey>, slice: &mut Slice, mut matching: impl FnMut(&Record) -> bool) -> Scanned {
        let view = &self.published().view;
        match &seek.plan {
            Plan::Identity(id) => {
                let lowest = EntryKey::lowest();
                for record in view.ips_of_identity(*id, start.unwrap_or(&lowest)) {
                    if slice.is_over() {
                        return Scanned::Paused(record.key.clone());
                    }
                    slice.look();
                    if !matching(&record) {
                        return Scanned::Full(record.key.clone());
                    }
                }
                Scanned::All
            }
            Plan::Keys(keys) => {
                let first = start.map_or(0, |start| keys.partition_point(|key| key < start));
                for key in &keys[first..] {
                    if slice.is_over() {
                        return Scanned::Paused(key.clone());
                    }
                    slice.look();
                    if view.record(key).is_some_and(|record| !matching(&record)) {
                        return Scanned::Full(key.clone());
                    }
                }
                Scanned::All
            }
            Plan::Runs(_) => scan_runs(view, seek, start, slice, |key| seek.filter.may_match(key), matching),
        }
    }

    /// Passes the raw entries of a seek to `take`, from `start` on, until `take` returns false.
    pub fn scan_entries(&self, seek: &Seek, start: Option<&EntryKey>, slice: &mut Slice, take: impl FnMut(&Record) -> bool) -> Scanned {
        scan_runs(&self.published().view, seek, start, slice, |_| true, take)
    }

    /// Passes the raw entries of a seek whose newest value was rejected to `take`, from `start` on,
    /// until `take` returns false.
    pub fn scan_rejected(
        &self,
        seek: &Seek,
        start: Option<&EntryKey>,
        slice: &mut Slice,
        mut take: impl FnMut(&Record) -> bool,
    ) -> Scanned {
        let view = &self.published().view;
        let Plan::Runs(runs) = &seek.plan else { return Scanned::All };
        for run in runs {
            let Some(from) = run.from(start) else { continue };
            for key in view.rejected_from(&from).take_while(|key| run.holds(key)) {
                if slice.is_over() {
                    return Scanned::Paused(key.clone());
                }
                slice.look();
                if view.record(key).is_some_and(|record| !take(&record)) {
                    return Scanned::Full(key.clone());
                }
            }
        }
        Scanned::All
    }
}

/// Passes the records of runs whose keys pass `test` to `take`, from `start` on, until `take`
/// returns false.
fn scan_runs(
    view: &View,
    seek: &Seek,
    start: Option<&EntryKey>,
    slice: &mut Slice,
    test: impl Fn(&EntryKey) -> bool,
    mut take: impl FnMut(&Record) -> bool,
) -> Scanned {
    let Plan::Runs(runs) = &seek.plan else { return Scanned::All };
    let hosts: Vec<IpAddr> = seek.filter.hosts.iter().flatten().map(|(_, ip)| *ip).collect();
    for run in runs {
        let Some(from) = run.from(start) else { continue };
        for live in view.live_keys_on(&from, &hosts) {
            let key = live.key();
            if !run.holds(&key) {
                break;
            }
            if slice.is_over() {
                return Scanned::Paused(key);
            }
            slice.look();
            if test(&key)
                && let Some(record) = view.record_if(&live, |_| true)
                && !take(&record)
            {
                return Scanned::Full(key);
            }
        }
    }
    Scanned::All
}
