//! Scans of lists, in slices of work. Each slice continues from a key until the page is full, no
//! key is left, or the limit of the slice is reached.

mod list_plan;
pub(super) mod work_slice;

use self::list_plan::{KeyPlan, ListPlan};
use super::{DecodedBudgetError, Reading, WorkSlice};
use crate::model::{EntryKey, Record};
use crate::view::{RowFilter, View};

/// Reason why a scan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEnd<K = EntryKey> {
    /// No key is left.
    Complete,
    /// `accept` refused the object of this key; the next page begins with it.
    PageFull(K),
    /// The slice is over. The scan continues with this key, which was not tested yet.
    Paused(K),
    /// There is no memory for the decoded object of this key; the next page begins with it.
    OverBudget(K, DecodedBudgetError),
}

impl Reading {
    /// Passes the objects that match a plan's filter to `accept`, from `start` on, until `accept`
    /// returns false.
    pub fn scan(
        &self,
        plan: &ListPlan,
        start: Option<&EntryKey>,
        slice: &mut WorkSlice,
        mut accept: impl FnMut(&Record) -> bool,
    ) -> ScanEnd {
        let (filter, mut over_budget) = (&plan.filter, None);
        let accept_if_matching = |record: &Record| match self.reserve_memory_for(record) {
            Ok(_permit) => {
                let matches = record.object.as_deref().is_some_and(|object| filter.matches(&record.key, object));
                !matches || accept(record)
            }
            Err(error) => {
                over_budget = Some(error);
                false
            }
        };
        match (self.scan_plan(plan, start, slice, accept_if_matching), over_budget) {
            (ScanEnd::PageFull(key), Some(error)) => ScanEnd::OverBudget(key, error),
            (end, _) => end,
        }
    }

    fn scan_plan(
        &self,
        plan: &ListPlan,
        start: Option<&EntryKey>,
        slice: &mut WorkSlice,
        mut accept: impl FnMut(&Record) -> bool,
    ) -> ScanEnd {
        let view = &self.published().view;
        match &plan.keys {
            KeyPlan::Identity(id) => {
                let lowest = EntryKey::lowest();
                for record in view.ips_of_identity(*id, start.unwrap_or(&lowest)) {
                    if slice.is_over() {
                        return ScanEnd::Paused(record.key.clone());
                    }
                    slice.count_row();
                    if !accept(&record) {
                        return ScanEnd::PageFull(record.key.clone());
                    }
                }
                ScanEnd::Complete
            }
            KeyPlan::Keys(keys) => {
                let first = start.map_or(0, |start| keys.partition_point(|key| key < start));
                for key in &keys[first..] {
                    if slice.is_over() {
                        return ScanEnd::Paused(key.clone());
                    }
                    slice.count_row();
                    if view.record(key).is_some_and(|record| !accept(&record)) {
                        return ScanEnd::PageFull(key.clone());
                    }
                }
                ScanEnd::Complete
            }
            KeyPlan::Runs(_) => {
                let rows = plan.filter.row_filter();
                scan_runs(view, plan, start, slice, (rows.as_ref(), |key| plan.filter.may_match(key)), accept)
            }
        }
    }

    /// Passes the raw entries of a plan to `accept`, from `start` on, until `accept` returns false.
    pub fn scan_entries(
        &self,
        plan: &ListPlan,
        start: Option<&EntryKey>,
        slice: &mut WorkSlice,
        accept: impl FnMut(&Record) -> bool,
    ) -> ScanEnd {
        scan_runs(&self.published().view, plan, start, slice, (None, |_| true), accept)
    }

    /// Passes the raw entries of a plan whose newest value was rejected to `accept`, from `start`
    /// on, until `accept` returns false.
    pub fn scan_rejected(
        &self,
        plan: &ListPlan,
        start: Option<&EntryKey>,
        slice: &mut WorkSlice,
        mut accept: impl FnMut(&Record) -> bool,
    ) -> ScanEnd {
        let view = &self.published().view;
        let KeyPlan::Runs(runs) = &plan.keys else { return ScanEnd::Complete };
        for run in runs {
            let Some(from) = run.first_key_from(start) else { continue };
            for key in view.rejected_from(&from).take_while(|key| run.contains(key)) {
                if slice.is_over() {
                    return ScanEnd::Paused(key.clone());
                }
                slice.count_row();
                if view.record(key).is_some_and(|record| !accept(&record)) {
                    return ScanEnd::PageFull(key.clone());
                }
            }
        }
        ScanEnd::Complete
    }
}

/// Passes the records of runs that may match `rows` and whose keys pass `test` to `accept`, from
/// `start` on, until `accept` returns false.
fn scan_runs(
    view: &View,
    plan: &ListPlan,
    start: Option<&EntryKey>,
    slice: &mut WorkSlice,
    (rows, test): (Option<&RowFilter>, impl Fn(&EntryKey) -> bool),
    mut accept: impl FnMut(&Record) -> bool,
) -> ScanEnd {
    let KeyPlan::Runs(runs) = &plan.keys else { return ScanEnd::Complete };
    for run in runs {
        let Some(from) = run.first_key_from(start) else { continue };
        for live in view.live_keys_matching(&from, rows) {
            let key = live.key();
            if !run.contains(&key) {
                break;
            }
            if slice.is_over() {
                return ScanEnd::Paused(key);
            }
            slice.count_row();
            if test(&key)
                && let Some(record) = view.record_if(&live, |_| true)
                && !accept(&record)
            {
                return ScanEnd::PageFull(key);
            }
        }
    }
    ScanEnd::Complete
}

#[cfg(test)]
mod tests;
