//! A client of the stream that disconnects, stalls, sleeps and returns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::compare::read_list;
use super::decode::{ChangesAnswer, Lines, SseBlock};
use super::spec::{CheckerSpec, ConnectionPattern, Encoding};
use super::state::{LostEpochs, Position, ReceivedObject, State};
use crate::harness::meshkeep::http;

/// Time until a checker connects again, in milliseconds: shorter than the delay of ordinary
/// clients.
const RECONNECT_DELAY_MS: std::ops::Range<u64> = 1..60;

/// Time that a sleeper stays away or a staller reads nothing, in milliseconds. It is long enough
/// for tombstones after its position to be dropped.
const ABSENCE_MS: std::ops::Range<u64> = 500..8_000;

/// Number of bytes that a restless checker reads before it disconnects: less than a snapshot, or
/// many times as much.
const SHORT_READ_BYTES: std::ops::Range<u64> = 1..300_000;
const LONG_READ_BYTES: std::ops::Range<u64> = 300_000..6_000_000;

/// Limit of events in an answer of the long poll, and its waiting time in seconds.
const POLL_LIMIT: std::ops::Range<u32> = 50..2_000;
const POLL_WAIT_S: std::ops::Range<u32> = 0..3;

/// The server that the checkers use, if there is one.
#[derive(Debug, Clone, Default)]
pub(super) struct Target {
    /// Number that grows whenever the server changes. A checker that sees another number ends its
    /// connection.
    pub(super) number: u64,
    pub(super) url: Option<String>,
    /// True for a second server with a copy of the first one's directory.
    pub(super) is_clone: bool,
    pub(super) lost_epochs: LostEpochs,
}

/// State that the driver (the soak test, which runs the actions) and a checker share.
#[derive(Debug)]
pub(super) struct CheckerShared {
    state: Mutex<State>,
    /// Signal to disconnect and resume now.
    pub(super) nudge: Notify,
}

/// The driver's access to a checker.
#[derive(Debug, Clone)]
pub(super) struct CheckerHandle {
    pub(super) spec: CheckerSpec,
    pub(super) shared: Arc<CheckerShared>,
}

/// Signals to all checkers.
#[derive(Debug, Clone)]
pub(super) struct Signals {
    pub(super) target: watch::Receiver<Target>,
    /// While true, no checker disconnects, stalls or sleeps.
    pub(super) calm: watch::Receiver<bool>,
    /// Changes when all checkers except the steady ones must disconnect, while there is no server.
    pub(super) away: watch::Receiver<u32>,
}

/// Cause of the end of a connection.
enum ConnectionEnd {
    /// The server closed the connection, or the driver asked the checker to connect again.
    Broken,
    /// The checker closed the connection.
    Left,
}

struct Checker {
    spec: CheckerSpec,
    shared: Arc<CheckerShared>,
    signals: Signals,
    random: StdRng,
}

impl CheckerShared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CheckerHandle {
    pub(super) fn start(spec: CheckerSpec, signals: Signals, seed: u64, tasks: &mut JoinSet<()>) -> Self {
        let shared = Arc::new(CheckerShared { state: Mutex::new(State::new(spec)), nudge: Notify::new() });
        let checker = Checker { spec, shared: Arc::clone(&shared), signals, random: StdRng::seed_from_u64(seed) };
        tasks.spawn(checker.run());
        Self { spec, shared }
    }
}

impl Checker {
    async fn run(mut self) {
        loop {
            let Some(target) = self.next_server().await else { return };
            let end = match self.spec.form {
                Encoding::Changes => self.poll(&target).await,
                Encoding::Sse | Encoding::NdJson | Encoding::Patch => self.stream(&target).await,
            };
            let absence = match (end, self.spec.pattern) {
                (Some(ConnectionEnd::Left), ConnectionPattern::Sleeper) => ABSENCE_MS,
                _ => RECONNECT_DELAY_MS,
            };
            self.pause(absence).await;
        }
    }

    /// Waits until there is a server. Returns `None` when the driver has ended.
    async fn next_server(&mut self) -> Option<Target> {
        let browser = self.spec.pattern == ConnectionPattern::Browser;
        // a browser keeps its position after a `reset`; if it left a clone inside the snapshot, the
        // original server would accept that position although the state is incomplete
        let usable = |target: &Target| target.url.is_some() && !(browser && target.is_clone);
        self.signals.target.wait_for(usable).await.ok().map(|target| target.clone())
    }

    async fn pause(&mut self, range_ms: std::ops::Range<u64>) {
        let pause = Duration::from_millis(self.random.random_range(range_ms));
        let calm = self.signals.calm.wait_for(|calm| *calm);
        if pause.as_millis() < u128::from(RECONNECT_DELAY_MS.end) {
            sleep(pause).await;
        } else {
            // the end of the driver also ends the pause
            let _ = tokio::time::timeout(pause, calm).await;
        }
    }

    /// Returns the signals that end a connection: another server, or an absence.
    fn disconnect_signals(&self) -> (watch::Receiver<Target>, watch::Receiver<u32>) {
        let mut away = self.signals.away.clone();
        away.mark_unchanged();
        (self.signals.target.clone(), away)
    }

    fn read_budget(&mut self) -> u64 {
        match self.spec.pattern {
            ConnectionPattern::Steady => u64::MAX,
            _ if self.random.random_bool(0.5) => self.random.random_range(SHORT_READ_BYTES),
            _ => self.random.random_range(LONG_READ_BYTES),
        }
    }

    /// Reads one connection to its end. Returns `None` if it could not be opened.
    async fn stream(&mut self, target: &Target) -> Option<ConnectionEnd> {
        let url = target.url.as_deref()?;
        let resume_after = self.shared.state().resume_after.clone();
        if resume_after.is_none() && self.spec.pattern == ConnectionPattern::FromLists {
            self.load_lists(url).await?;
        }
        let mut response = self.open(url).await?;
        self.shared.state().begin(&target.lost_epochs);
        let (mut target_changes, mut away) = self.disconnect_signals();
        let (mut lines, mut block, mut read_budget) = (Lines::default(), SseBlock::default(), self.read_budget());
        loop {
            tokio::select! {
                chunk = response.chunk() => match chunk {
                    Ok(Some(chunk)) => {
                        self.feed(&chunk, &mut lines, &mut block);
                        read_budget = read_budget.saturating_sub(chunk.len() as u64);
                    }
                    Ok(None) | Err(_) => return Some(ConnectionEnd::Broken),
                },
                _ = away.changed(), if self.spec.pattern != ConnectionPattern::Steady => return Some(ConnectionEnd::Broken),
                () = self.shared.nudge.notified() => return Some(ConnectionEnd::Broken),
                _ = target_changes.wait_for(|now| now.number != target.number && now.url.is_some()) => return Some(ConnectionEnd::Broken),
            }
            if read_budget == 0 && !*self.signals.calm.borrow() {
                if self.spec.pattern != ConnectionPattern::Staller {
                    return Some(ConnectionEnd::Left);
                }
                self.pause(ABSENCE_MS).await;
                read_budget = self.read_budget();
            }
            if self.must_list_again() {
                return Some(ConnectionEnd::Broken);
            }
        }
    }

    /// Returns whether the checker uses no snapshots and has no position.
    fn must_list_again(&self) -> bool {
        self.spec.pattern == ConnectionPattern::FromLists && self.shared.state().resume_after.is_none()
    }

    async fn open(&mut self, url: &str) -> Option<reqwest::Response> {
        let resume_after = self.shared.state().resume_after.clone();
        let patch = if self.spec.form == Encoding::Patch { "&patch=true" } else { "" };
        let mut url = format!("{url}/v1/events?snapshot=true{}{patch}", self.spec.filter);
        let in_header = self.spec.pattern == ConnectionPattern::Browser || self.random.random_bool(0.5);
        let accept = if self.spec.form == Encoding::NdJson { "application/x-ndjson" } else { "text/event-stream" };
        if let (Some(position), false) = (&resume_after, in_header) {
            url += &format!("&after={position}");
        }
        let mut request = http().get(&url).header("accept", accept);
        if let (Some(position), true) = (&resume_after, in_header) {
            request = request.header("last-event-id", position);
        }
        let response = request.send().await.ok()?;
        match response.status().as_u16() {
            200 => Some(response),
            // the store is loading
            503 => None,
            status => {
                self.shared.state().record_violation(&format!("{url} is answered with {status}"));
                None
            }
        }
    }

    fn feed(&self, chunk: &[u8], lines: &mut Lines, block: &mut SseBlock) {
        let mut state = self.shared.state();
        if self.spec.form == Encoding::NdJson {
            lines.feed(chunk, |line| state.data(line));
        } else {
            lines.feed(chunk, |line| block.line(line, |name, id, data| state.sse(name, id, data)));
        }
    }

    /// Reads the lists page by page while they change, instead of a snapshot. The stream continues
    /// from the first list's position, so changes before a later page are received twice.
    async fn load_lists(&mut self, url: &str) -> Option<()> {
        let mut objects = Vec::new();
        let mut position = None;
        for kind in self.spec.kinds {
            let path = format!("{}?limit=100{}", kind.path(), self.spec.list_filter());
            let list = read_list(url, &path).await?;
            position.get_or_insert(list.position);
            for item in list.items {
                let value: Value = serde_json::from_str(item.get()).ok()?;
                objects.push((kind.key(&value), ReceivedObject { kind: *kind, text: kind.comparable_part(item.get()) }));
            }
        }
        self.shared.state().load(objects, &position?);
        Some(())
    }

    /// Repeats the long poll until an error, a signal or the checker's own pause.
    async fn poll(&mut self, target: &Target) -> Option<ConnectionEnd> {
        let url = target.url.as_deref()?;
        // inside a snapshot or replay the next position is a continuation token of the last answer
        let is_unfinished = |state: &State| state.resume_after.as_deref().is_some_and(|text| Position::parse(text).is_none());
        {
            let mut state = self.shared.state();
            if !is_unfinished(&state) {
                state.begin(&target.lost_epochs);
            }
        }
        let (mut target_changes, mut away) = self.disconnect_signals();
        let until = Instant::now() + Duration::from_millis(self.random.random_range(ABSENCE_MS));
        loop {
            let after = self.shared.state().resume_after.clone();
            let begin = after.map_or_else(|| "snapshot=true".to_owned(), |position| format!("after={position}"));
            let (limit, wait) = (self.random.random_range(POLL_LIMIT), self.random.random_range(POLL_WAIT_S));
            let url = format!("{url}/v1/changes?{begin}{}&limit={limit}&waitSeconds={wait}", self.spec.filter);
            tokio::select! {
                answer = ask(&url) => match answer {
                    Ok(text) => self.apply_answer(&text?),
                    Err(status) => {
                        self.shared.state().record_violation(&format!("{url} is answered with {status}"));
                        return None;
                    }
                },
                // the checker leaves, and the answer in transit is lost
                () = sleep_until(until), if !*self.signals.calm.borrow() => return Some(ConnectionEnd::Left),
                _ = away.changed(), if self.spec.pattern != ConnectionPattern::Steady => return Some(ConnectionEnd::Broken),
                () = self.shared.nudge.notified() => return Some(ConnectionEnd::Broken),
                _ = target_changes.wait_for(|now| now.number != target.number && now.url.is_some()) => return Some(ConnectionEnd::Broken),
            }
        }
    }

    fn apply_answer(&self, text: &str) {
        let mut state = self.shared.state();
        let answer: ChangesAnswer = match serde_json::from_str(text) {
            Ok(answer) => answer,
            Err(e) => return state.record_violation(&format!("an answer that cannot be read ({e}): {text}")),
        };
        for event in &answer.events {
            state.data(event.get().as_bytes());
        }
        let last_is_synced = answer.events.last().is_some_and(|event| event.get().contains(r#""type":"synced""#));
        if last_is_synced == answer.more {
            state.record_violation(&format!("an answer with more={} ends with {:?}", answer.more, answer.events.last()));
        }
        state.resume_after = Some(answer.next_position);
    }
}

/// Sends a long poll. Returns `None` if there was no answer or the store is loading (503), and any
/// other status as an error.
async fn ask(url: &str) -> Result<Option<String>, u16> {
    let Ok(response) = http().get(url).send().await else { return Ok(None) };
    match response.status().as_u16() {
        200 => Ok(response.text().await.ok()),
        503 => Ok(None),
        status => Err(status),
    }
}
