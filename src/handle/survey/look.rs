//! A survey on its way to a later moment, or from nothing: piece by piece, so that a look can let others run and can be stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use imbl::OrdMap;

use super::backends::Backends;
use super::pod_cidrs::PodCidrs;
use super::slice_bytes::SliceBytes;
use super::{Finding, Survey};
use crate::commit::Changed;
use crate::handle::Reading;
use crate::model::{EntryKey, Kind, Sequence};

/// How many keys one piece takes in, or how many findings it settles: some milliseconds, as one takes a microsecond or two.
const PIECE_KEYS: usize = 4_096;

/// How many services one piece merges the exports of: each takes as long as its exports are many, 255 of them some milliseconds.
const PIECE_SERVICES: usize = 32;

/// A survey that is not there yet.
#[derive(Debug)]
pub struct Look {
    /// Its reading is the moment that it goes to.
    survey: Survey,
    work: Work,
    /// What is to be settled once everything is counted.
    touched: BTreeSet<Finding>,
}

/// What is left to be done.
#[derive(Debug)]
enum Work {
    /// To take in everything from a key on.
    Everything(EntryKey),
    /// To take in what changed since a moment, behind a sequence.
    Changes(Reading, Sequence),
    /// To settle what is wrong.
    Judging,
}

impl Look {
    /// Begins to look at all of a moment.
    #[must_use]
    pub fn at(reading: Reading) -> Self {
        Self::within(reading, Backends::default())
    }

    /// Begins to look at all of a moment, with as much room for backends as these have.
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

    /// Begins to take in what changed since a survey; everything anew where that is no longer known, or where
    /// what was left out has room.
    #[must_use]
    pub fn after(survey: Survey, reading: Reading) -> Self {
        let position = survey.position();
        if position < reading.published().feed.floor() || survey.backends.has_room_again() {
            return Self::within(reading, survey.backends.emptied());
        }
        let from = survey.reading.clone();
        Self { survey: Survey { reading, ..survey }, work: Work::Changes(from, position), touched: BTreeSet::new() }
    }

    /// Does the next piece; breaks with the survey after the last.
    pub fn advance(mut self) -> ControlFlow<Survey, Self> {
        self.work = match self.work {
            Work::Everything(next) => match self.survey.take_in(&next) {
                Some(next) => Work::Everything(next),
                None => {
                    self.touched = self.survey.all_that_may_be_wrong();
                    Work::Judging
                }
            },
            Work::Changes(from, after) => match self.survey.take_changes(&from, after, &mut self.touched) {
                Some(after) => Work::Changes(from, after),
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
    /// Counts a piece of everything; returns where the next one begins.
    fn take_in(&mut self, start: &EntryKey) -> Option<EntryKey> {
        let reading = self.reading.clone();
        let view = &reading.published().view;
        let mut rest = view.live_from(start);
        for live in rest.by_ref().take(PIECE_KEYS) {
            match (live.kind(), view.gist_of(&live)) {
                // what they are part of is found by the index of addresses
                (Kind::NodeIp | Kind::Identity, _) | (_, None) => {}
                (Kind::Ip, Some(gist)) => self.count(live.cluster(), &gist, true),
                (_, Some(gist)) => self.replace(&live.key(), None, Some(&gist)),
            }
        }
        rest.next().map(|live| live.key())
    }

    /// Whatever can be wrong, where everything was counted.
    fn all_that_may_be_wrong(&self) -> BTreeSet<Finding> {
        let view = &self.reading.published().view;
        let identities = self.naming.keys().map(|(identity, cluster)| Finding::DanglingIdentity(cluster.clone(), *identity));
        let hosts = self.hosted.keys().map(|(ip, cluster)| Finding::DanglingHostIp(cluster.clone(), *ip));
        let refused = view.rejected_from(&EntryKey::lowest()).map(|key| Finding::IdentityOutOfRange(key.clone()));
        let prefixes = view.prefixes_of_several().into_iter().map(Finding::DuplicateAddress);
        let start = EntryKey::lowest_of(Kind::ServiceExport);
        let exports = view.live_from(&start).take_while(|live| live.kind() == Kind::ServiceExport);
        let exports = exports.map(|live| Finding::ExportConflict(live.key().name));
        let services = self.slice_bytes.larger_than(self.reading.service_bytes_max()).into_iter().map(Finding::ServiceTooLarge);
        identities.chain(hosts).chain(refused).chain(prefixes).chain(exports).chain(services).collect()
    }

    /// Takes in a piece of what changed; returns behind which sequence the next one begins.
    fn take_changes(&mut self, from: &Reading, after: Sequence, touched: &mut BTreeSet<Finding>) -> Option<Sequence> {
        let reading = self.reading.clone();
        let (old, new) = (&from.published().view, &reading.published().view);
        let changes = reading.published().changes_after(after, PIECE_KEYS);
        let mut settled = BTreeSet::new();
        for (_, changed) in &changes {
            let (Changed::Live(key) | Changed::Gone(key, _)) = changed;
            if matches!(key.kind, Kind::Cluster | Kind::Problem | Kind::Notice) {
                continue;
            }
            if old.is_rejected(key) || new.is_rejected(key) {
                settled.insert(Finding::IdentityOutOfRange(key.clone()));
            }
            // its gist says nothing of what it exports
            if key.kind == Kind::ServiceExport {
                touched.insert(Finding::ExportConflict(key.name.clone()));
            }
            let (old, new) = (old.gist(key), new.gist(key));
            if old != new {
                settled.extend(Self::prefix_that_came_or_went(key, old.as_ref(), new.as_ref()).map(Finding::DuplicateAddress));
                touched.extend(self.touched_by(key, old.as_ref(), new.as_ref()));
                self.replace(key, old.as_ref(), new.as_ref());
            }
        }
        // these are read from the newest state alone
        self.judge(settled);
        changes.last().filter(|_| changes.len() >= PIECE_KEYS).map(|(sequence, _)| *sequence)
    }
}
