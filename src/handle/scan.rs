//! Scans of lists, in slices of work. Each slice continues from a key until the page is full, no
//! key is left, or the limit of the slice is reached.

pub(in crate::handle) mod list_plan;
pub(super) mod work_slice;

use std::sync::Arc;

use self::list_plan::{KeyPlan, KeyRun, ListPlan};
use super::{DecodedBudgetError, Reading, WorkSlice};
use crate::model::{EntryKey, Record};
use crate::view::{LiveKey, RowFilter, View};

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

    fn scan_plan(&self, plan: &ListPlan, start: Option<&EntryKey>, slice: &mut WorkSlice, accept: impl FnMut(&Record) -> bool) -> ScanEnd {
        let view = &self.published.view;
        match &plan.keys {
            KeyPlan::Identity(id) => {
                let lowest = EntryKey::lowest();
                let records = view.ips_of_identity(*id, start.unwrap_or(&lowest));
                scan_rows(records, slice, |record| &record.key, |record| Some(Arc::clone(record)), accept)
            }
            KeyPlan::Keys(keys) => self.scan_keys(keys, start, slice, accept),
            KeyPlan::Runs(runs) => {
                let rows = plan.filter.row_filter();
                scan_runs(view, runs, start, slice, (rows.as_ref(), |key| plan.filter.may_match(key)), accept)
            }
        }
    }

    /// Passes the records of keys, which are in order, to `accept`, from `start` on, until `accept`
    /// returns false.
    pub(in crate::handle) fn scan_keys(
        &self,
        keys: &[EntryKey],
        start: Option<&EntryKey>,
        slice: &mut WorkSlice,
        accept: impl FnMut(&Record) -> bool,
    ) -> ScanEnd {
        let first = start.map_or(0, |start| keys.partition_point(|key| key < start));
        scan_rows(&keys[first..], slice, |key| key, |key| self.published.view.record(key), accept)
    }

    /// Passes the raw entries of a plan to `accept`, from `start` on, until `accept` returns false.
    pub fn scan_entries(
        &self,
        plan: &ListPlan,
        start: Option<&EntryKey>,
        slice: &mut WorkSlice,
        accept: impl FnMut(&Record) -> bool,
    ) -> ScanEnd {
        scan_runs(&self.published.view, plan.runs(), start, slice, (None, |_| true), accept)
    }

    /// Passes the raw entries of a plan whose newest value was rejected to `accept`, from `start`
    /// on, until `accept` returns false.
    pub fn scan_rejected(
        &self,
        plan: &ListPlan,
        start: Option<&EntryKey>,
        slice: &mut WorkSlice,
        accept: impl FnMut(&Record) -> bool,
    ) -> ScanEnd {
        let view = &self.published.view;
        let runs = plan.runs().iter().filter_map(|run| Some((run, run.first_key_from(start)?)));
        let keys = runs.flat_map(|(run, from)| view.rejected_from(&from).take_while(|key| run.contains(key)));
        scan_rows(keys, slice, |key| key, |key| view.record(key), accept)
    }
}

/// Passes the records of runs that may match `rows` and whose keys pass `test` to `accept`, from
/// `start` on, until `accept` returns false.
fn scan_runs(
    view: &View,
    runs: &[KeyRun],
    start: Option<&EntryKey>,
    slice: &mut WorkSlice,
    (rows, test): (Option<&RowFilter>, impl Fn(&EntryKey) -> bool),
    accept: impl FnMut(&Record) -> bool,
) -> ScanEnd {
    let runs = runs.iter().filter_map(|run| Some((run, run.first_key_from(start)?)));
    let rows = runs.flat_map(|(run, from)| {
        let rows = view.live_keys_matching(&from, rows).map(|live| (live.key(), live));
        rows.take_while(|(key, _)| run.contains(key))
    });
    let record_of = |(key, live): &(EntryKey, LiveKey)| test(key).then(|| view.record_if(live, |_| true)).flatten();
    scan_rows(rows, slice, |(key, _)| key, record_of, accept)
}

/// Passes the records of rows to `accept`, in order, until `accept` returns false. Rows may have no
/// record.
fn scan_rows<Row>(
    rows: impl IntoIterator<Item = Row>,
    slice: &mut WorkSlice,
    key_of: impl Fn(&Row) -> &EntryKey,
    record_of: impl Fn(&Row) -> Option<Arc<Record>>,
    mut accept: impl FnMut(&Record) -> bool,
) -> ScanEnd {
    for row in rows {
        if slice.is_over() {
            return ScanEnd::Paused(key_of(&row).clone());
        }
        slice.count_row();
        if record_of(&row).is_some_and(|record| !accept(&record)) {
            return ScanEnd::PageFull(key_of(&row).clone());
        }
    }
    ScanEnd::Complete
}

#[cfg(test)]
mod tests;
