//! Builds a [`FindingIndex`] from a snapshot, or updates one to a later snapshot. The work is done
//! piece by piece, so that other tasks can run in between and it can be stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use imbl::OrdMap;

use super::backends::BackendIndex;
use super::pod_cidrs::PodCidrs;
use super::slice_bytes::SliceBytes;
use super::{Finding, FindingIndex};
use crate::commit::LatestChange;
use crate::handle::{Follower, NewestChanges, Reading};
use crate::model::{EntryKey, Kind};

/// Number of keys that a piece reads, or of findings that it checks: a few milliseconds of work, as
/// each takes 1 to 2 µs.
const PIECE_KEYS: usize = 4_096;

/// Number of services whose exports a piece merges. The time grows with the number of exports; 255
/// take a few milliseconds.
const PIECE_SERVICES: usize = 32;

/// A [`FindingIndex`] in progress.
#[derive(Debug)]
pub struct FindingIndexBuilder {
    /// Index in progress. Its `reading` is already the target snapshot.
    index: FindingIndex,
    step: BuildStep,
    /// Findings to check once everything is counted.
    to_check: BTreeSet<Finding>,
}

/// Remaining work.
#[derive(Debug)]
enum BuildStep {
    /// Read everything from a key on.
    AddEntries(EntryKey),
    /// Read the changes since a snapshot.
    ApplyChanges(Reading, Follower),
    /// Check the findings.
    CheckFindings,
}

impl FindingIndexBuilder {
    /// Starts to build the index of a whole snapshot.
    #[must_use]
    pub fn new(reading: Reading) -> Self {
        Self::with_backends(reading, BackendIndex::default())
    }

    /// Starts to build the index of a whole snapshot, with an empty index of backends.
    pub(super) fn with_backends(reading: Reading, backends: BackendIndex) -> Self {
        let index = FindingIndex {
            reading,
            by_identity: OrdMap::new(),
            by_host: OrdMap::new(),
            pod_cidrs: PodCidrs::stale(),
            backends,
            slice_bytes: SliceBytes::default(),
            findings: OrdMap::new(),
            counts: BTreeMap::new(),
        };
        Self { index, step: BuildStep::AddEntries(EntryKey::lowest()), to_check: BTreeSet::new() }
    }

    /// Starts to update an index to a later snapshot. Reads everything again if the changes since
    /// the old snapshot are no longer known, or if backends that were left out fit now.
    #[must_use]
    pub fn update(index: FindingIndex, reading: Reading) -> Self {
        let follower = Follower::at(index.position());
        if follower.check(&reading).is_err() || index.backends.can_index_omitted() {
            return Self::with_backends(reading, index.backends.empty_copy());
        }
        let from = index.reading.clone();
        Self { index: FindingIndex { reading, ..index }, step: BuildStep::ApplyChanges(from, follower), to_check: BTreeSet::new() }
    }

    /// Processes the next piece. Returns `Break` with the index after the last piece.
    pub fn advance(mut self) -> ControlFlow<FindingIndex, Self> {
        self.step = match self.step {
            BuildStep::AddEntries(next) => match self.index.add_entries(&next) {
                Some(next) => BuildStep::AddEntries(next),
                None => {
                    self.to_check = self.index.possible_findings();
                    BuildStep::CheckFindings
                }
            },
            BuildStep::ApplyChanges(from, follower) => match self.index.apply_changes(&from, follower, &mut self.to_check) {
                Some(follower) => BuildStep::ApplyChanges(from, follower),
                None => BuildStep::CheckFindings,
            },
            BuildStep::CheckFindings if self.to_check.is_empty() => {
                self.index.update_overlap_findings();
                return ControlFlow::Break(self.index);
            }
            BuildStep::CheckFindings => {
                let is_export_conflict = |finding: &Finding| matches!(finding, Finding::ExportConflict(_));
                let mut export_count = 0;
                let mut piece = Vec::new();
                while piece.len() < PIECE_KEYS && export_count < PIECE_SERVICES {
                    let Some(finding) = self.to_check.pop_first() else { break };
                    export_count += usize::from(is_export_conflict(&finding));
                    piece.push(finding);
                }
                self.index.check_findings(piece);
                BuildStep::CheckFindings
            }
        };
        ControlFlow::Continue(self)
    }
}

impl FindingIndex {
    /// Adds a piece of the snapshot to the index. Returns the start of the next piece.
    fn add_entries(&mut self, start: &EntryKey) -> Option<EntryKey> {
        let reading = self.reading.clone();
        let view = &reading.published.view;
        let mut rest = view.live_keys_from(start);
        for live in rest.by_ref().take(PIECE_KEYS) {
            match (live.kind(), view.references_of(&live)) {
                // findings about these come from the indices of the view
                (Kind::NodeIp | Kind::Identity, _) | (_, None) => {}
                (Kind::Ip, Some(references)) => self.count_references(live.cluster(), &references, true),
                (_, Some(references)) => self.replace(&live.key(), None, Some(&references)),
            }
        }
        rest.next().map(|live| live.key())
    }

    /// Returns every possible finding, once everything is counted.
    fn possible_findings(&self) -> BTreeSet<Finding> {
        let view = &self.reading.published.view;
        let identities = self.by_identity.keys().map(|(identity, cluster)| Finding::DanglingIdentity(cluster.clone(), *identity));
        let hosts = self.by_host.keys().map(|(ip, cluster)| Finding::DanglingHostIp(cluster.clone(), *ip));
        let out_of_range = view.rejected_from(&EntryKey::lowest()).map(|key| Finding::IdentityOutOfRange(key.clone()));
        let prefixes = view.duplicate_prefixes().into_iter().map(Finding::DuplicateAddress);
        let start = EntryKey::lowest_of(Kind::ServiceExport);
        let exports = view.live_keys_from(&start).take_while(|live| live.kind() == Kind::ServiceExport);
        let exports = exports.map(|live| Finding::ExportConflict(live.key().name));
        let services = self.slice_bytes.larger_than(self.reading.service_bytes_max()).into_iter().map(Finding::ServiceTooLarge);
        identities.chain(hosts).chain(out_of_range).chain(prefixes).chain(exports).chain(services).collect()
    }

    /// Reads a piece of the changes. Returns the position after it, or `None` after the last one.
    fn apply_changes(&mut self, from: &Reading, follower: Follower, to_check: &mut BTreeSet<Finding>) -> Option<Follower> {
        let reading = self.reading.clone();
        let (old, new) = (&from.published.view, &reading.published.view);
        // the snapshot had all changes when the work began, and a snapshot loses none
        let NewestChanges { changes, up_to } = follower.newest_changes(&reading, PIECE_KEYS).ok()?;
        let mut check_now = BTreeSet::new();
        for (_, changed) in changes {
            let references = match &changed {
                LatestChange::Live(live) => new.references_of(live),
                LatestChange::Deleted(..) => None,
            };
            let key = &changed.into_key();
            if matches!(key.kind, Kind::Cluster | Kind::Problem | Kind::Notice) {
                continue;
            }
            if old.is_rejected(key) || new.is_rejected(key) {
                check_now.insert(Finding::IdentityOutOfRange(key.clone()));
            }
            // the references of an export do not include its service
            if key.kind == Kind::ServiceExport {
                to_check.insert(Finding::ExportConflict(key.name.clone()));
            }
            let before = old.references(key);
            if before != references {
                check_now.extend(Self::added_or_deleted_prefix(key, before.as_ref(), references.as_ref()).map(Finding::DuplicateAddress));
                to_check.extend(self.affected_findings(key, before.as_ref(), references.as_ref()));
                self.replace(key, before.as_ref(), references.as_ref());
            }
        }
        // these depend only on the newest state
        self.check_findings(check_now);
        let follower = Follower::at(up_to);
        (!follower.is_current(&reading)).then_some(follower)
    }
}
