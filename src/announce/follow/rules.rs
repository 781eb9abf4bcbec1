//! Rules that decide when a changed file is applied: once it has been unchanged for some seconds,
//! and later if the change withdraws many workloads. Pure: times, file states and contents are
//! passed in.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::error::{FileError, ParsedFile};
use super::file_state::FileState;
use crate::model::redacted_path;

/// Times and limits of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeRules {
    /// Time that a file must be unchanged before its change is applied.
    pub stable_time: Duration,
    /// Time that a file must be unchanged if the change withdraws more than `max_withdrawal`.
    pub hold_time: Duration,
    /// Largest percentage of a file's workloads that a change may withdraw without being held back.
    pub max_withdrawal: MaxWithdrawal,
}

/// A percentage of workloads. 100 % means that no change is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxWithdrawal(u8);

impl MaxWithdrawal {
    const ALL: Self = Self(100);

    #[cfg(test)]
    pub(super) const fn from_percent(percent: u8) -> Self {
        Self(percent)
    }
}

impl FromStr for MaxWithdrawal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok()).filter(|percent| *percent <= Self::ALL.0);
        percent.map(Self).ok_or_else(|| "must be a percentage from 0% to 100%, such as 50%".to_owned())
    }
}

impl fmt::Display for MaxWithdrawal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// A file, its applied version and its newest version.
#[derive(Debug)]
pub(super) struct FollowedFile {
    path: PathBuf,
    /// State and content of the version that is announced.
    applied: (FileState, Arc<ParsedFile>),
    /// Newest state, and the time since which the file has had it.
    seen: (FileState, Instant),
    /// Time since which the file has had changes that could not be read because the next change
    /// followed too soon.
    changing_since: Option<Instant>,
    read_change: Option<ReadChange>,
}

/// A change that was read once the file was stable.
#[derive(Debug)]
struct ReadChange {
    state: FileState,
    content: Result<Arc<ParsedFile>, FileError>,
    /// Time since which the file has had this content.
    since: Instant,
}

impl ReadChange {
    fn has_same_content(&self, content: &Result<Arc<ParsedFile>, FileError>) -> bool {
        match (&self.content, content) {
            (Ok(before), Ok(now)) => before.text == now.text,
            (Err(before), Err(now)) => before == now,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        }
    }
}

impl FollowedFile {
    /// Creates a file whose content is announced already.
    pub(super) fn new(state: FileState, content: Arc<ParsedFile>, now: Instant) -> Self {
        let path = content.path.clone();
        Self { path, applied: (state.clone(), content), seen: (state, now), changing_since: None, read_change: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn state(&self) -> &FileState {
        &self.seen.0
    }

    /// Records the current state. Returns whether it differs from the last one.
    pub(super) fn observe(&mut self, state: FileState, now: Instant) -> bool {
        if state == self.seen.0 {
            return false;
        }
        self.seen = (state, now);
        if self.seen.0 == self.applied.0 {
            (self.changing_since, self.read_change) = (None, None);
        } else {
            self.changing_since.get_or_insert(now);
        }
        true
    }

    /// Returns whether the file has a change that was not read yet.
    pub(super) fn is_unread(&self) -> bool {
        self.seen.0 != self.applied.0 && self.change().is_none()
    }

    /// Returns the time at which the file is stable, if it has an unread change.
    fn readable_at(&self, rules: &ChangeRules) -> Option<Instant> {
        self.is_unread().then(|| self.seen.1 + rules.stable_time)
    }

    /// Returns whether the file must be read now.
    pub(super) fn is_due(&self, rules: &ChangeRules, now: Instant, immediately: bool) -> bool {
        self.readable_at(rules).is_some_and(|due| immediately || due <= now)
    }

    /// Records the content that belongs to the newest state. Writing the same content again does
    /// not reset its age.
    pub(super) fn set_content(&mut self, content: Result<Arc<ParsedFile>, FileError>) {
        self.changing_since = None;
        let before = self.read_change.take().filter(|before| before.has_same_content(&content));
        let (state, since) = (self.seen.0.clone(), before.map_or(self.seen.1, |before| before.since));
        match &content {
            Ok(content) if content.text == self.applied.1.text => self.applied.0 = state,
            Ok(_) | Err(_) => self.read_change = Some(ReadChange { state, content, since }),
        }
    }

    /// Returns the change that was read, unless the file has changed again since.
    fn change(&self) -> Option<&ReadChange> {
        self.read_change.as_ref().filter(|change| change.state == self.seen.0)
    }

    /// Returns the content to announce after `decision`.
    pub(super) fn content(&self, decision: &Decision) -> Result<Arc<ParsedFile>, FileError> {
        match (decision, self.change()) {
            (Decision::Apply, Some(change)) => change.content.clone(),
            (Decision::Apply | Decision::Keep | Decision::HoldBack(_), _) => Ok(Arc::clone(&self.applied.1)),
        }
    }

    /// Makes the change that was read the applied version.
    pub(super) fn apply(&mut self) {
        if let Some(ReadChange { state, content: Ok(content), .. }) = self.read_change.take() {
            self.applied = (state, content);
        }
    }
}

/// Decision about one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// There is no change that could be applied, so the announced content stays.
    Keep,
    /// Apply the change, provided that all files together are valid.
    Apply,
    /// Apply the change later.
    HoldBack(HeldBackChange),
}

/// A change that is not applied yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::announce) struct HeldBackChange {
    pub(super) path: PathBuf,
    pub(super) reason: HoldBackReason,
    /// Time at which the change is applied if the file does not change again. `None` if that is
    /// unknown.
    pub(super) until: Option<Instant>,
}

/// Reason why a change is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::announce) enum HoldBackReason {
    /// The change withdraws too many workloads.
    Withdrawal(WithdrawnWorkloads),
    /// The file changes again each time before it is stable.
    KeepsChanging,
}

impl fmt::Display for HeldBackChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            HoldBackReason::Withdrawal(WithdrawnWorkloads { withdrawn, workloads, .. }) => {
                write!(f, "{}: would withdraw {withdrawn} of {workloads} workloads", redacted_path(&self.path))
            }
            HoldBackReason::KeepsChanging => write!(f, "{}: keeps changing", redacted_path(&self.path)),
        }
    }
}

/// The workloads that a change of a file withdraws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::announce) struct WithdrawnWorkloads {
    /// Number of workloads of the file that no file has any more.
    pub(super) withdrawn: usize,
    /// Number of workloads that the file had.
    pub(super) workloads: usize,
    /// True if the file was deleted or has no entries any more.
    pub(super) is_everything: bool,
}

impl WithdrawnWorkloads {
    fn between(before: &ParsedFile, after: &ParsedFile, names: &HashSet<(&str, &str)>) -> Self {
        let withdrawn = workloads(before).filter(|name| !names.contains(name)).count();
        let is_everything = after.is_empty() && !before.is_empty();
        Self { withdrawn, workloads: before.yaml.workloads.len(), is_everything }
    }

    fn exceeds(self, max: MaxWithdrawal) -> bool {
        let share_exceeds = self.withdrawn * 100 > self.workloads * usize::from(max.0);
        max != MaxWithdrawal::ALL && (share_exceeds || self.is_everything)
    }
}

/// Returns namespace and name of a file's workloads.
fn workloads(file: &ParsedFile) -> impl Iterator<Item = (&str, &str)> {
    file.yaml.workloads.iter().map(|workload| (workload.namespace.as_str(), workload.name.as_str()))
}

/// Decides on the change of each file. A workload that moves to another file is not withdrawn,
/// unless the change of the other file is held back.
pub(super) fn decide(files: &[FollowedFile], rules: &ChangeRules, now: Instant, immediately: bool) -> Vec<Decision> {
    let keeps_changing = |file: &FollowedFile| file.is_unread() && file.changing_since.is_some_and(|since| since + rules.hold_time <= now);
    let initial_decision = |file: &FollowedFile| match file.change() {
        Some(_) => Decision::Apply,
        None if keeps_changing(file) => {
            Decision::HoldBack(HeldBackChange { path: file.path.clone(), reason: HoldBackReason::KeepsChanging, until: None })
        }
        None => Decision::Keep,
    };
    let mut decisions: Vec<Decision> = files.iter().map(initial_decision).collect();
    if immediately {
        return decisions;
    }
    // holding back one change can make another one withdraw more
    loop {
        let contents: Vec<_> = files.iter().zip(&decisions).filter_map(|(file, decision)| file.content(decision).ok()).collect();
        let names: HashSet<_> = contents.iter().flat_map(|content| workloads(content)).collect();
        let held_back: Vec<_> = files
            .iter()
            .zip(&decisions)
            .enumerate()
            .filter(|(_, (_, decision))| **decision == Decision::Apply)
            .filter_map(|(index, (file, _))| Some((index, file.held_back_change(&names, rules, now)?)))
            .collect();
        if held_back.is_empty() {
            return decisions;
        }
        for (index, change) in held_back {
            decisions[index] = Decision::HoldBack(change);
        }
    }
}

impl FollowedFile {
    /// Returns the file's change if it must be held back.
    fn held_back_change(&self, names: &HashSet<(&str, &str)>, rules: &ChangeRules, now: Instant) -> Option<HeldBackChange> {
        let change = self.change()?;
        let withdrawal = WithdrawnWorkloads::between(&self.applied.1, change.content.as_ref().ok()?, names);
        let until = change.since + rules.hold_time;
        let is_held_back = withdrawal.exceeds(rules.max_withdrawal) && now < until;
        is_held_back.then(|| HeldBackChange { path: self.path.clone(), reason: HoldBackReason::Withdrawal(withdrawal), until: Some(until) })
    }
}

/// Returns the next time at which a decision can change although no file changes.
pub(super) fn next_decision(files: &[FollowedFile], decisions: &[Decision], rules: &ChangeRules, now: Instant) -> Option<Instant> {
    let readable = files.iter().filter_map(|file| file.readable_at(rules));
    let keeps_changing = files.iter().filter_map(|file| Some(file.changing_since? + rules.hold_time));
    let held_back = decisions.iter().filter_map(|decision| match decision {
        Decision::HoldBack(change) => change.until,
        Decision::Keep | Decision::Apply => None,
    });
    readable.chain(keeps_changing).chain(held_back).filter(|time| *time > now).min()
}

/// Returns the time that a start has to wait until recently changed files are stable. A missing or
/// unreadable file ends the wait, because it is an error.
pub(super) fn first_wait(seen: &[(FileState, Instant)], rules: &ChangeRules, now: Instant) -> Duration {
    if seen.iter().any(|(state, _)| !matches!(state, FileState::Present(_))) {
        return Duration::ZERO;
    }
    seen.iter().map(|(_, since)| (*since + rules.stable_time).saturating_duration_since(now)).max().unwrap_or_default()
}
