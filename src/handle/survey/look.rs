//! The work that brings a survey to a later snapshot, or builds the first one. It runs piece by
//! piece, so that others can run in between and it can be stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use imbl::OrdMap;

use super::backends::Backends;
use super::pod_cidrs::PodCidrs;
use super::slice_bytes::SliceBytes;
use super::{Finding, Survey};
use crate::handle::{Follower, NewestChanges, Reading};
use crate::model::{EntryKey, Kind};

/// Number of keys that a piece reads, or of findings that it checks: a few milliseconds of work, as
/// each takes 1 to 2 µs.
const PIECE_KEYS: usize = 4_096;

/// Number of services whose exports a piece merges. The time grows with the number of exports; 255
/// take a few milliseconds.
const PIECE_SERVICES: usize = 32;

/// A survey in progress.
#[derive(Debug)]
pub struct Look {
    /// Survey whose reading is the snapshot to reach.
    survey: Survey,
    work: Work,
    /// Findings to check once everything is counted.
    touched: BTreeSet<Finding>,
}

/// Remaining work.
#[derive(Debug)]
enum Work {
    /// Read everything from a key on.
    Everything(EntryKey),
    /// Read the changes since a snapshot.
    Changes(Reading, Follower),
    /// Check the findings.
    Judging,
}

impl Look {
    /// Starts a survey of a whole snapshot.
    #[must_use]
    pub fn at(reading: Reading) -> Self {
        Self::within(reading, Backends::default())
    }

    /// Starts a survey of a whole snapshot, with an empty index of backends.
    pub(super) fn within(reading: Reading, backends: Backends) -> Self {
        let survey = Survey {
            reading,
            naming: OrdMap::new(),
            hosted: OrdMap::new(),
            pod_cidrs: PodCidrs::unsettled(),
            backends,
            slice_bytes: SliceBytes::default(),
            findings: OrdMap::new(),
            counts: BTreeMap::new(),
        };
        Self { survey, work: Work::Everything(EntryKey::lowest()), touched: BTreeSet::new() }
    }

    /// Starts to bring a survey to a later snapshot. Reads everything again if the changes since
    /// are no longer known, or if backends that were left out fit now.
    #[must_use]
    pub fn after(survey: Survey, reading: Reading) -> Self {
        let follower = Follower::at(survey.position());
        if follower.check(&reading).is_err() || survey.backends.has_room_again() {
            return Self::within(reading, survey.backends.emptied());
        }
        let from = survey.reading.clone();
        Self { survey: Survey { reading, ..survey }, work: Work::Changes(from, follower), touched: BTreeSet::new() }
    }

    /// Does the next piece. Breaks with the survey after the last one.
    pub fn advance(mut self) -> ControlFlow<Survey, Self> {
        self.work = match self.work {
            Work::Everything(next) => match self.survey.take_in(&next) {
                Some(next) => Work::Everything(next),
                None => {
                    self.touched = self.survey.all_that_may_be_wrong();
                    Work::Judging
                }
            },
            Work::Changes(from, follower) => match self.survey.take_changes(&from, follower, &mut self.touched) {
                Some(follower) => Work::Changes(from, follower),
                None => Work::Judging,
            },
            Work::Judging if self.touched.is_empty() => {
                self.survey.judge_pod_cidrs();
                return ControlFlow::Break(self.survey);
            }
            Work::Judging => {
                let is_service = |finding: &Finding| matches!(finding, Finding::ExportConflict(_));
                let mut services = 0;
                let mut piece = Vec::new();
                while piece.len() < PIECE_KEYS && services < PIECE_SERVICES {
                    let Some(finding) = self.touched.pop_first() else { break };
                    services += usize::from(is_service(&finding));
                    piece.push(finding);
                }
                self.survey.judge(piece);
                Work::Judging
            }
        };
        ControlFlow::Continue(self)
    }
}

impl Survey {
    /// Counts a piece of the snapshot. Returns the start of the next piece.
    fn take_in(&mut self, start: &EntryKey) -> Option<EntryKey> {
        let reading = self.reading.clone();
        let view = &reading.published().view;
        let mut rest = view.live_keys_from(start);
        for live in rest.by_ref().take(PIECE_KEYS) {
            match (live.kind(), view.references_of(&live)) {
                // findings about these come from the indices of the view
                (Kind::NodeIp | Kind::Identity, _) | (_, None) => {}
                (Kind::Ip, Some(references)) => self.count(live.cluster(), &references, true),
                (_, Some(references)) => self.replace(&live.key(), None, Some(&references)),
            }
        }
        rest.next().map(|live| live.key())
    }

    /// Returns every possible finding, once everything is counted.
    fn all_that_may_be_wrong(&self) -> BTreeSet<Finding> {
        let view = &self.reading.published().view;
        let identities = self.naming.keys().map(|(identity, cluster)| Finding::DanglingIdentity(cluster.clone(), *identity));
        let hosts = self.hosted.keys().map(|(ip, cluster)| Finding::DanglingHostIp(cluster.clone(), *ip));
        let refused = view.rejected_from(&EntryKey::lowest()).map(|key| Finding::IdentityOutOfRange(key.clone()));
        let prefixes = view.duplicate_prefixes().into_iter().map(Finding::DuplicateAddress);
        let start = EntryKey::lowest_of(Kind::ServiceExport);
        let exports = view.live_keys_from(&start).take_while(|live| live.kind() == Kind::ServiceExport);
        let exports = exports.map(|live| Finding::ExportConflict(live.key().name));
        let services = self.slice_bytes.larger_than(self.reading.service_bytes_max()).into_iter().map(Finding::ServiceTooLarge);
        identities.chain(hosts).chain(refused).chain(prefixes).chain(exports).chain(services).collect()
    }

    /// Reads a piece of the changes. Returns the position after it, or `None` after the last one.
    fn take_changes(&mut self, from: &Reading, follower: Follower, touched: &mut BTreeSet<Finding>) -> Option<Follower> {
        let reading = self.reading.clone();
        let (old, new) = (&from.published().view, &reading.published().view);
        // the snapshot had all changes when the work began, and a snapshot loses none
        let NewestChanges { changes, up_to } = follower.newest_changes(&reading, PIECE_KEYS).ok()?;
        let mut settled = BTreeSet::new();
        for (_, changed) in changes {
            let key = &changed.into_key();
            if matches!(key.kind, Kind::Cluster | Kind::Problem | Kind::Notice) {
                continue;
            }
            if old.is_rejected(key) || new.is_rejected(key) {
                settled.insert(Finding::IdentityOutOfRange(key.clone()));
            }
            // its references does not include the exported service
            if key.kind == Kind::ServiceExport {
                touched.insert(Finding::ExportConflict(key.name.clone()));
            }
            let (old, new) = (old.references(key), new.references(key));
            if old != new {
                settled.extend(Self::prefix_that_came_or_went(key, old.as_ref(), new.as_ref()).map(Finding::DuplicateAddress));
                touched.extend(self.touched_by(key, old.as_ref(), new.as_ref()));
                self.replace(key, old.as_ref(), new.as_ref());
            }
        }
        // these depend only on the newest state
        self.judge(settled);
        let follower = Follower::at(up_to);
        (!follower.is_current(&reading)).then_some(follower)
    }
}
