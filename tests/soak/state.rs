//! State of a checker, built from the stream alone, and the rules that every stream must obey.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::RESUMES_AFTER_KILL;
use super::decode::Event;
use super::spec::{CheckerSpec, ConnectionPattern, Encoding, KINDS, Kind};

/// Maximum number of violations that a checker records. The first one matters most.
const VIOLATIONS_MAX: usize = 5;

/// Interval, in upserts, at which an object is decoded and tested against the filter. Comparisons
/// test all of them.
const FILTER_TESTED_EVERY: u64 = 16;

/// Number of hexadecimal digits of an epoch.
const EPOCH_DIGITS: usize = 16;

/// Epochs of which a server lost the later sequences or never had them, each with the last sequence
/// that the server has.
pub(super) type LostEpochs = BTreeMap<String, u64>;

/// A parsed position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) epoch: String,
    pub(super) sequence: u64,
    /// Newest sequence that a client at this position may have seen. Inside a replay, it can be
    /// newer than `sequence`.
    seen: u64,
}

/// Phase of a checker's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The connection is new.
    Opened,
    /// A `reset` was received.
    Snapshot,
    /// The connection continues from a position, and no `synced` was received yet.
    Replay,
    /// Everything was sent up to some position.
    Synced,
}

/// An object as it was received.
#[derive(Debug)]
pub(super) struct ReceivedObject {
    pub(super) kind: Kind,
    pub(super) text: Box<str>,
}

/// Counters of a checker.
#[derive(Debug, Default, Clone)]
pub(super) struct Tally {
    pub(super) live: u64,
    pub(super) replayed: u64,
    pub(super) snapshot: u64,
    pub(super) patches: u64,
    pub(super) connections: u64,
    /// Number of accepted positions, and number of those that came from an earlier start of
    /// meshkeep.
    pub(super) resumes: u64,
    pub(super) resumes_over_restarts: u64,
    pub(super) resets: BTreeMap<String, u64>,
    /// Number of live deletes of unknown keys, and of live upserts that change nothing. They are
    /// allowed, but wasteful.
    pub(super) idle: u64,
    pub(super) bookmarks: u64,
}

/// State of a checker.
#[derive(Debug)]
pub(super) struct State {
    spec: CheckerSpec,
    /// Received objects by key.
    pub(super) objects: HashMap<String, ReceivedObject>,
    /// Current position; `None` inside a snapshot.
    pub(super) position: Option<Position>,
    /// Position that the next connection resumes after.
    pub(super) resume_after: Option<String>,
    pub(super) phase: Phase,
    pub(super) tally: Tally,
    pub(super) violations: Vec<String>,
    /// Highest sequence seen of each epoch.
    highest: HashMap<String, u64>,
    /// Epochs of which the server of this connection lacks the later sequences.
    lost_epochs: LostEpochs,
    /// Number of upserts and deletes since the last `reset`.
    since_reset: u64,
    /// True from a `reset` until its snapshot is complete: the state is partial.
    partial: bool,
}

impl Position {
    /// Returns whether this position includes everything up to another one.
    pub(super) fn reaches(&self, other: &Self) -> bool {
        self.epoch == other.epoch && self.sequence >= other.sequence
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("v1.")?.split('.');
        let (epoch, sequence) = (parts.next()?, parts.next()?.parse().ok()?);
        // inside a replay the newest seen sequence follows the epoch
        let (epoch, seen) = epoch.split_at_checked(EPOCH_DIGITS)?;
        let seen = if seen.is_empty() { sequence } else { u64::from_str_radix(seen, 16).ok()? };
        parts.next().is_none().then_some(Self { epoch: epoch.to_owned(), sequence, seen })
    }
}

impl Tally {
    /// Returns the number of upserts, deletes and patches outside of snapshots.
    pub(super) fn changes(&self) -> u64 {
        self.live + self.replayed
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.live += other.live;
        self.replayed += other.replayed;
        self.snapshot += other.snapshot;
        self.patches += other.patches;
        self.connections += other.connections;
        self.resumes += other.resumes;
        self.resumes_over_restarts += other.resumes_over_restarts;
        self.idle += other.idle;
        self.bookmarks += other.bookmarks;
        for (reason, count) in &other.resets {
            *self.resets.entry(reason.clone()).or_default() += count;
        }
    }
}

impl State {
    pub(super) fn new(spec: CheckerSpec) -> Self {
        Self {
            spec,
            objects: HashMap::new(),
            position: None,
            resume_after: None,
            phase: Phase::Opened,
            tally: Tally::default(),
            violations: Vec::new(),
            highest: HashMap::new(),
            lost_epochs: LostEpochs::new(),
            since_reset: 0,
            partial: false,
        }
    }

    /// Starts a connection or, for the long poll, a request that is not inside a snapshot.
    pub(super) fn begin(&mut self, lost_epochs: &LostEpochs) {
        self.tally.connections += 1;
        self.phase = Phase::Opened;
        self.lost_epochs.clone_from(lost_epochs);
    }

    /// Loads the objects of lists instead of a snapshot.
    pub(super) fn load(&mut self, objects: Vec<(String, ReceivedObject)>, position: &str) {
        self.objects = objects.into_iter().collect();
        self.tally.snapshot += self.objects.len() as u64;
        self.phase = Phase::Opened;
        self.partial = false;
        self.move_to(position, 0);
    }

    pub(super) fn record_violation(&mut self, rule: &str) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(format!("checker {}, {:?} at {:?}: {rule}", self.spec.name, self.phase, self.position));
        }
    }

    /// Processes a server-sent event.
    pub(super) fn sse(&mut self, name: &[u8], id: Option<&[u8]>, data: &[u8]) {
        let Some(event) = self.parse_event(data) else { return };
        if event.name.as_bytes() != name {
            self.record_violation(&format!(
                "`type` is not the event's name {}: {}",
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(data)
            ));
        }
        if event.position().map(str::as_bytes) != id {
            self.record_violation(&format!("the id {id:?} is not the position of {}", String::from_utf8_lossy(data)));
        }
        self.apply(&event);
    }

    /// Processes the data of an event.
    pub(super) fn data(&mut self, data: &[u8]) {
        if let Some(event) = self.parse_event(data) {
            self.apply(&event);
        }
    }

    fn parse_event<'a>(&mut self, data: &'a [u8]) -> Option<Event<'a>> {
        match serde_json::from_slice(data) {
            Ok(event) => Some(event),
            Err(e) => {
                self.record_violation(&format!("an event that cannot be read ({e}): {}", String::from_utf8_lossy(data)));
                None
            }
        }
    }

    fn apply(&mut self, event: &Event<'_>) {
        if self.phase == Phase::Opened && event.name != "reset" && event.name != "error" {
            self.resumed();
        }
        match event.name {
            "reset" => self.reset(event.reason.unwrap_or_default()),
            "upsert" | "cluster" => {
                self.count_change(event);
                self.upsert(event);
            }
            "delete" => {
                self.count_change(event);
                let known = event.key.as_ref().is_some_and(|key| self.objects.remove(key.as_ref()).is_some());
                self.tally.idle += u64::from(!known && self.phase == Phase::Synced);
            }
            "patch" => {
                self.count_change(event);
                self.patch(event);
            }
            "synced" => self.synced(event),
            "bookmark" => {
                self.tally.bookmarks += 1;
                if self.phase != Phase::Synced {
                    self.record_violation("a bookmark before synced");
                }
                self.apply_position(event);
            }
            "error" => {
                let problem = event.problem.map(serde_json::value::RawValue::get).unwrap_or_default();
                // the store is loading, or a planned shutdown cut a snapshot short: the stream
                // ends, and the next one waits
                if !["loading", "stopping"].iter().any(|code| problem.contains(code)) {
                    self.record_violation(&format!("an error event: {problem}"));
                }
            }
            // an event type of a later version: only its position matters
            _ => self.apply_position(event),
        }
    }

    /// Handles a connection whose first event is no `reset`: the server accepted the position.
    fn resumed(&mut self) {
        self.phase = Phase::Replay;
        let Some(sent) = self.resume_after.as_deref().and_then(Position::parse) else {
            self.record_violation("a snapshot that does not begin with a reset");
            return;
        };
        if self.partial {
            self.record_violation("the server accepted a position that was answered with a reset before");
        }
        if self.lost_epochs.get(&sent.epoch).is_some_and(|bound| sent.seen > *bound) {
            self.record_violation(&format!(
                "the server accepted the position {sent:?}, which its store does not have: {:?}",
                self.lost_epochs
            ));
        }
        self.tally.resumes += 1;
    }

    fn reset(&mut self, reason: &str) {
        *self.tally.resets.entry(reason.to_owned()).or_default() += 1;
        let allowed: &[&str] = match (self.phase, self.resume_after.as_deref()) {
            (Phase::Opened, None) => &["initial"],
            (Phase::Opened, Some(_)) => &["expired", "foreignEpoch", "rolledBack"],
            // inside a snapshot or replay only the long poll can start again, with another request
            (_, Some(sent)) if Position::parse(sent).is_none() => &["expired", "foreignEpoch", "rolledBack"],
            (Phase::Snapshot | Phase::Replay | Phase::Synced, _) => &["expired"],
        };
        let sent = self.resume_after.as_deref().and_then(Position::parse);
        let is_lost_epoch = sent.is_none_or(|sent| self.lost_epochs.contains_key(&sent.epoch));
        if !allowed.contains(&reason) || (RESUMES_AFTER_KILL && !is_lost_epoch && ["foreignEpoch", "rolledBack"].contains(&reason)) {
            self.record_violation(&format!("reset with the reason {reason:?} after {:?}", self.resume_after));
        }
        self.forget();
        if self.spec.pattern != ConnectionPattern::Browser {
            self.resume_after = None;
        }
    }

    /// Drops the state. A snapshot must follow.
    pub(super) fn forget(&mut self) {
        self.objects.clear();
        self.position = None;
        self.phase = Phase::Snapshot;
        self.since_reset = 0;
        self.partial = true;
    }

    fn count_change(&mut self, event: &Event<'_>) {
        self.since_reset += 1;
        match self.phase {
            Phase::Snapshot => {
                self.tally.snapshot += 1;
                if event.position().is_some() {
                    self.record_violation(&format!("a position inside a snapshot: {event:?}"));
                }
            }
            Phase::Replay => self.tally.replayed += 1,
            Phase::Synced | Phase::Opened => self.tally.live += 1,
        }
        match event.position() {
            Some(text) => self.move_to(text, 1),
            // a long replay may be in key order, without positions
            None if self.phase == Phase::Synced => self.record_violation(&format!("no position: {event:?}")),
            None => {}
        }
    }

    fn apply_position(&mut self, event: &Event<'_>) {
        match event.position() {
            Some(text) => self.move_to(text, 0),
            None => self.record_violation(&format!("no position: {event:?}")),
        }
    }

    /// Moves to a position that must be at least `step` above the highest one of its epoch.
    fn move_to(&mut self, text: &str, step: u64) {
        let Some(position) = Position::parse(text) else {
            self.record_violation(&format!("the position {text:?} cannot be read"));
            return;
        };
        let highest = self.highest.get(&position.epoch).copied();
        if highest.is_some_and(|highest| position.sequence < highest + step) {
            self.record_violation(&format!("the position {text} after {highest:?}"));
        }
        if highest.is_none() {
            self.highest.insert(position.epoch.clone(), position.sequence);
            let sent = self.resume_after.as_deref().and_then(Position::parse);
            let is_from_earlier_start = self.phase == Phase::Replay && sent.is_some_and(|sent| sent.epoch != position.epoch);
            self.tally.resumes_over_restarts += u64::from(is_from_earlier_start);
        } else if let Some(highest) = self.highest.get_mut(&position.epoch) {
            *highest = position.sequence.max(*highest);
        }
        self.position = Some(position);
        self.resume_after = Some(text.to_owned());
    }

    fn synced(&mut self, event: &Event<'_>) {
        let mode = if self.phase == Phase::Snapshot { "snapshot" } else { "replay" };
        if event.mode != Some(mode) {
            self.record_violation(&format!("synced with the mode {:?} instead of {mode}", event.mode));
        }
        if self.phase == Phase::Snapshot && event.count != Some(self.since_reset) {
            self.record_violation(&format!("synced counts {:?} events of a snapshot of {}", event.count, self.since_reset));
        }
        self.apply_position(event);
        self.phase = Phase::Synced;
        self.partial = false;
    }

    fn upsert(&mut self, event: &Event<'_>) {
        let kind = KINDS.into_iter().find(|kind| Some(kind.name()) == event.kind && kind.event() == event.name);
        let (Some(kind), Some(key), Some(object)) = (kind, &event.key, event.object) else {
            self.record_violation(&format!("an upsert without kind, key or object: {event:?}"));
            return;
        };
        if self.since_reset.is_multiple_of(FILTER_TESTED_EVERY) {
            let value: Value = serde_json::from_str(object.get()).unwrap_or_default();
            if !self.spec.kinds.contains(&kind) || !(self.spec.passes)(&value) {
                self.record_violation(&format!("an object that does not match the filter {}: {value}", self.spec.filter));
            }
        }
        let text = kind.comparable_part(object.get());
        let idle = self.phase == Phase::Synced && self.objects.get(key.as_ref()).is_some_and(|before| before.text == text);
        self.tally.idle += u64::from(idle);
        self.objects.insert(key.to_string(), ReceivedObject { kind, text });
    }

    fn patch(&mut self, event: &Event<'_>) {
        self.tally.patches += 1;
        if self.spec.form != Encoding::Patch || self.phase != Phase::Synced {
            self.record_violation(&format!("a patch that was not requested, or not live: {event:?}"));
        }
        let object = event.key.as_ref().and_then(|key| self.objects.get_mut(key.as_ref()));
        let (Some(object), Some(backends)) = (object, event.backends) else {
            self.record_violation(&format!("a patch of an object that was not sent, or without backends: {event:?}"));
            return;
        };
        match patched(&object.text, backends.get()) {
            Some(text) => object.text = text,
            None => self.record_violation(&format!("a patch that cannot be applied: {event:?}")),
        }
    }
}

/// Applies a patch to the backends of a service. A backend is identified by its address.
fn patched(service: &str, patch: &str) -> Option<Box<str>> {
    let mut service: Value = serde_json::from_str(service).ok()?;
    let patch: Value = serde_json::from_str(patch).ok()?;
    let (upserted, removed) = (patch["upserted"].as_array()?, patch["removed"].as_array()?);
    let fields = service.as_object_mut()?;
    let backends = fields.entry("backends").or_insert_with(|| Value::Array(Vec::new())).as_array_mut()?;
    backends.retain(|backend| !removed.contains(&backend["ip"]) && !upserted.iter().any(|new| new["ip"] == backend["ip"]));
    backends.extend(upserted.iter().cloned());
    Some(service.to_string().into())
}
