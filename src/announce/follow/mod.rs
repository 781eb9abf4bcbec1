//! Follows the input files. Applies their changes according to the [rules](rules), and logs each
//! error and each held-back change once.

mod file_state;
mod metrics;
mod rules;
#[cfg(test)]
mod tests;

use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use file_state::FileState;
pub(super) use metrics::write_metrics;
pub use rules::{ChangeRules, MaxWithdrawal};
use rules::{Decision, FollowedFile, HeldBackChange, decide, first_wait, next_decision};

use super::error::{FileError, ParsedFile};
use super::files::{check_count, check_files, read_file};
use super::plan::ClusterPlan;
use crate::file_watch::DirectoryWatch;
use crate::model::redacted_path;

/// Interval between checks of the files' metadata when no change was reported. Same as for the
/// config directory.
const STATE_INTERVAL: Duration = Duration::from_secs(1);

/// Wait after a reported change before the metadata is read, so that one read covers several
/// changes. Same as for the config directory.
const DEBOUNCE_TIME: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum FollowError {
    /// The files contain errors when the announcer starts.
    Files(Vec<FileError>),
    /// A background task panicked.
    Task(JoinError),
}

impl From<JoinError> for FollowError {
    fn from(error: JoinError) -> Self {
        Self::Task(error)
    }
}

/// The difference between the files and what is announced: changes that are held back, and errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FollowReport {
    pub(super) held_back: Vec<HeldBackChange>,
    pub(super) errors: Vec<FileError>,
}

/// The followed files, and the plan that was published from them.
pub(super) struct FileFollower {
    files: Vec<FollowedFile>,
    rules: ChangeRules,
    /// Signal to apply every change immediately.
    apply_now: Arc<Notify>,
    plans: watch::Sender<Arc<ClusterPlan>>,
    reports: watch::Sender<FollowReport>,
}

impl FileFollower {
    /// Waits until the files are stable, then reads them. `apply_now` ends the wait.
    ///
    /// # Errors
    /// [`FollowError::Files`] if the files contain errors.
    pub(super) async fn start(paths: &[PathBuf], rules: ChangeRules, apply_now: Arc<Notify>) -> Result<Self, FollowError> {
        check_count(paths).map_err(FollowError::Files)?;
        let mut seen: Vec<(FileState, Instant)> = Vec::new();
        let (mut immediately, mut is_logged) = (false, false);
        loop {
            let file_states = file_states(paths).await?;
            let (now, wall) = (Instant::now(), SystemTime::now());
            seen = if seen.is_empty() {
                file_states.into_iter().map(|state| first_seen(state, rules.stable_time, now, wall)).collect()
            } else {
                seen.into_iter().zip(file_states).map(|(old, state)| if old.0 == state { old } else { (state, now) }).collect()
            };
            let wait = first_wait(&seen, &rules, now);
            if !wait.is_zero() && !immediately {
                if !is_logged {
                    tracing::info!(
                        stable_s = rules.stable_time.as_secs_f64(),
                        "a file changed recently: waiting until all files are stable"
                    );
                    is_logged = true;
                }
                tokio::select! {
                    () = sleep(wait) => {}
                    () = apply_now.notified() => immediately = true,
                }
                continue;
            }
            let all_paths = paths.to_vec();
            let contents: Vec<_> = spawn_blocking(move || all_paths.iter().map(|path| read_file(path).map(Arc::new)).collect()).await?;
            if !immediately && seen.iter().map(|(state, _)| state).ne(&self::file_states(paths).await?) {
                continue;
            }
            return Self::from_contents(seen, contents, rules, apply_now).await;
        }
    }

    async fn from_contents(
        seen: Vec<(FileState, Instant)>,
        contents: Vec<Result<Arc<ParsedFile>, FileError>>,
        rules: ChangeRules,
        apply_now: Arc<Notify>,
    ) -> Result<Self, FollowError> {
        let files = seen.into_iter().zip(&contents).filter_map(|((state, since), content)| {
            let content = Arc::clone(content.as_ref().ok()?);
            Some(FollowedFile::new(state, content, since))
        });
        let files = files.collect();
        let plan = spawn_blocking(|| check_files(contents)).await?.map_err(FollowError::Files)?;
        let (plans, reports) = (watch::Sender::new(Arc::new(plan)), watch::Sender::default());
        Ok(Self { files, rules, apply_now, plans, reports })
    }

    /// Returns a receiver of the plan. The plan changes when changes of the files are applied.
    pub(super) fn plans(&self) -> watch::Receiver<Arc<ClusterPlan>> {
        self.plans.subscribe()
    }

    /// Returns a receiver of the report of held-back changes and errors.
    pub(super) fn reports(&self) -> watch::Receiver<FollowReport> {
        self.reports.subscribe()
    }

    /// Applies changes until the future is dropped. Files with errors, and files that name another
    /// cluster than before, change nothing.
    pub(super) async fn follow(mut self) -> Result<(), JoinError> {
        let paths: Vec<_> = self.files.iter().map(|file| file.path().to_owned()).collect();
        let changed = Arc::new(Notify::new());
        let _watches: Vec<_> = directories(&paths).iter().filter_map(|directory| watch_directory(directory, &changed)).collect();
        let mut ticks = interval(STATE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next: Option<Instant> = None;
        loop {
            let immediately = tokio::select! {
                () = self.apply_now.notified() => true,
                () = changed.notified() => { sleep(DEBOUNCE_TIME).await; false }
                _ = ticks.tick() => false,
                () = sleep_until(next.unwrap_or_else(Instant::now).into()), if next.is_some() => false,
            };
            if immediately {
                tracing::info!("SIGHUP: applying all changes of the files immediately");
            }
            let file_states = file_states(&paths).await?;
            let now = Instant::now();
            let mut is_due = immediately || next.is_some_and(|next| next <= now);
            for (file, state) in self.files.iter_mut().zip(file_states) {
                is_due |= file.observe(state, now);
            }
            is_due |= self.read_changes(now, immediately).await?;
            if is_due {
                next = self.apply_changes(now, immediately).await?;
            }
        }
    }

    /// Reads the files that changed and are stable. Returns whether there were any.
    async fn read_changes(&mut self, now: Instant, immediately: bool) -> Result<bool, JoinError> {
        let due = self.files.iter().enumerate().filter(|(_, file)| file.is_due(&self.rules, now, immediately));
        let due: Vec<_> = due.map(|(index, file)| (index, file.path().to_owned(), file.state().clone())).collect();
        if due.is_empty() {
            return Ok(false);
        }
        let read_all = move || {
            due.into_iter().map(|(index, path, state)| (index, read_content(&path, &state), FileState::read(&path))).collect::<Vec<_>>()
        };
        for (index, content, state) in spawn_blocking(read_all).await? {
            let file = &mut self.files[index];
            // a file that changed while it was read is not stable
            if immediately || state == *file.state() {
                file.set_content(content);
            } else {
                file.observe(state, now);
            }
        }
        Ok(true)
    }

    /// Decides on all changes and applies those that are due. Returns the time of the next
    /// decision.
    async fn apply_changes(&mut self, now: Instant, immediately: bool) -> Result<Option<Instant>, JoinError> {
        let (files, rules) = (take(&mut self.files), self.rules);
        let (files, decisions, checked) = spawn_blocking(move || {
            let decisions = decide(&files, &rules, now, immediately);
            let is_changed = decisions.contains(&Decision::Apply);
            let checked = is_changed.then(|| check_files(files.iter().zip(&decisions).map(|(file, decision)| file.content(decision))));
            (files, decisions, checked)
        })
        .await?;
        self.files = files;
        let mut report = self.reports.borrow().clone();
        match checked {
            Some(Ok(plan)) => {
                report.errors.clear();
                if self.publish(plan) {
                    let applied = self.files.iter_mut().zip(&decisions).filter(|(_, decision)| **decision == Decision::Apply);
                    applied.for_each(|(file, _)| file.apply());
                }
            }
            Some(Err(errors)) => report.errors = errors,
            // an unread change may contain errors too
            None if self.files.iter().any(FollowedFile::is_unread) => {}
            None => report.errors.clear(),
        }
        let held_back = |decision: &Decision| match decision {
            Decision::HoldBack(change) => Some(change.clone()),
            Decision::Keep | Decision::Apply => None,
        };
        report.held_back = decisions.iter().filter_map(held_back).collect();
        self.reports.send_if_modified(|before| {
            log_changes(before, &report, self.rules.max_withdrawal);
            let is_changed = *before != report;
            *before = report;
            is_changed
        });
        Ok(next_decision(&self.files, &decisions, &self.rules, now))
    }

    /// Publishes a plan unless it names another cluster. Returns whether it was accepted.
    fn publish(&self, plan: ClusterPlan) -> bool {
        let before = Arc::clone(&self.plans.borrow());
        if plan.cluster != before.cluster || plan.id != before.id || plan.max_connected_clusters != before.max_connected_clusters {
            tracing::error!(
                announced = %before.cluster, id = before.id.0, found = %plan.cluster, found_id = plan.id.0,
                "the files have another cluster ({}, id {}): cluster {} (id {}) stays announced; retire it first",
                plan.cluster, plan.id, before.cluster, before.id
            );
            return false;
        }
        if plan != *before {
            tracing::info!("the files changed");
            self.plans.send_replace(Arc::new(plan));
        }
        true
    }
}

/// Logs errors and held-back changes that are new since `before`, and those that ended.
fn log_changes(before: &FollowReport, now: &FollowReport, max: MaxWithdrawal) {
    for error in now.errors.iter().filter(|error| !before.errors.contains(error)) {
        tracing::error!(%error, "a file has an error: no change is applied until it is corrected");
    }
    if now.errors.is_empty() && !before.errors.is_empty() {
        tracing::info!("the files have no errors any more");
    }
    for change in now.held_back.iter().filter(|change| !before.held_back.contains(change)) {
        let Some(until) = change.until else {
            tracing::warn!(%change, "a change is held back until the file is stable; SIGHUP applies it immediately");
            continue;
        };
        let seconds = until.saturating_duration_since(Instant::now()).as_secs();
        tracing::warn!(
            %change, "a change is held back because it exceeds --max-withdrawal {max}: it is applied in {seconds} s unless the file changes, and SIGHUP applies it immediately"
        );
    }
    let is_held_back = |path: &Path| now.held_back.iter().any(|change| change.path == path);
    for change in before.held_back.iter().filter(|change| !is_held_back(&change.path)) {
        tracing::info!(path = %redacted_path(&change.path), "no change to the file is held back any more");
    }
}

/// Returns the state with the time since which the file has had it, at most `stable` ago.
fn first_seen(state: FileState, stable: Duration, now: Instant, wall: SystemTime) -> (FileState, Instant) {
    let since = now.checked_sub(state.age(wall).min(stable)).unwrap_or(now);
    (state, since)
}

/// Returns the content of a path with this state. A deleted file has empty content. Blocks.
fn read_content(path: &Path, state: &FileState) -> Result<Arc<ParsedFile>, FileError> {
    match state {
        FileState::Missing => Ok(Arc::new(ParsedFile::missing(path.to_owned()))),
        FileState::Unreadable(error) => Err(FileError { path: path.to_owned(), line: None, reason: format!("cannot be read: {error}") }),
        FileState::Present(_) => read_file(path).map(Arc::new),
    }
}

async fn file_states(paths: &[PathBuf]) -> Result<Vec<FileState>, JoinError> {
    let paths = paths.to_vec();
    spawn_blocking(move || paths.iter().map(|path| FileState::read(path)).collect()).await
}

fn directories(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut directories: Vec<_> = paths.iter().map(|path| parent_directory(path)).collect();
    directories.sort();
    directories.dedup();
    directories
}

fn parent_directory(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn watch_directory(directory: &Path, changed: &Arc<Notify>) -> Option<DirectoryWatch> {
    let watch = DirectoryWatch::begin(directory, Arc::clone(changed));
    if let Err(error) = &watch {
        tracing::warn!(path = %directory.display(), error, "cannot watch a directory: checking its files every second instead");
    }
    watch.ok()
}
