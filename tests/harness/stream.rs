//! A follower of `/v1/events`: applies the events and keeps the resulting state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use serde_json::Value;
use tokio::task::JoinSet;

use super::eventually;
use super::meshkeep::{Meshkeep, http};
use super::truth::{Objects, reduce};

/// An event as it was received.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

/// State of a follower.
#[derive(Debug, Default)]
pub(crate) struct FollowerState {
    /// Objects by key.
    pub(crate) objects: Objects,
    /// All received events, in order.
    pub(crate) events: Vec<Event>,
    /// The newest `id:`.
    pub(crate) position: Option<String>,
    /// True if the stream has ended, whether the server closed it or the connection broke.
    pub(crate) ended: bool,
    /// True if a snapshot or replay has started and is not complete yet.
    is_catching_up: bool,
    /// Events that broke a rule of the stream.
    violations: Vec<String>,
}

/// A connection to the stream, closed when it is dropped.
pub(crate) struct Follower {
    followed: Arc<Mutex<FollowerState>>,
    _task: JoinSet<()>,
}

impl Follower {
    /// Opens a stream with a query (without `?`).
    pub(crate) async fn open(meshkeep: &Meshkeep, query: &str) -> Self {
        Self::open_at(meshkeep.url(), query).await
    }

    /// Opens a stream at a URL, for connections through a proxy.
    pub(crate) async fn open_at(url: &str, query: &str) -> Self {
        let url = format!("{url}/v1/events?{query}");
        let response = http().get(&url).header("accept", "text/event-stream").send().await.unwrap();
        assert_eq!(response.status(), 200, "{url}");
        let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
        assert!(content_type.starts_with("text/event-stream"), "{content_type}");
        Self::from_response(response)
    }

    /// Follows the stream of a response.
    pub(crate) fn from_response(response: reqwest::Response) -> Self {
        let followed = Arc::new(Mutex::new(FollowerState::default()));
        let mut task = JoinSet::new();
        task.spawn(follow(response, Arc::clone(&followed)));
        Self { followed, _task: task }
    }

    /// Returns the current state. Panics if the stream broke a rule.
    pub(crate) fn state(&self) -> MutexGuard<'_, FollowerState> {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(followed.violations, Vec::<String>::new(), "the stream broke its own rules");
        followed
    }

    /// Waits until `ask` returns an answer for the current state.
    pub(crate) async fn wait<T>(&self, what: &str, mut ask: impl FnMut(&FollowerState) -> Option<T>) -> T {
        eventually(what, || std::future::ready(ask(&self.state()))).await
    }

    /// Waits for the next `synced` event, counting from an index into the events.
    pub(crate) async fn wait_for_synced_after(&self, index: usize) {
        self.wait("a synced event", |followed| followed.events[index..].iter().any(|event| event.name == "synced").then_some(())).await;
    }
}

impl FollowerState {
    /// Returns the events with a name, from an index on.
    pub(crate) fn events_named<'a>(&'a self, name: &'a str, from: usize) -> impl Iterator<Item = &'a Event> {
        self.events[from..].iter().filter(move |event| event.name == name)
    }

    /// Returns the number of upserts and deletes by key since an index.
    pub(crate) fn changes_since(&self, from: usize) -> BTreeMap<String, usize> {
        let mut changes = BTreeMap::new();
        for event in self.events_named("upsert", from).chain(self.events_named("delete", from)) {
            *changes.entry(event.data["key"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        changes
    }

    fn apply(&mut self, event: Event) {
        self.check(&event);
        match event.name.as_str() {
            "reset" => {
                self.objects.clear();
                self.is_catching_up = true;
            }
            "upsert" => {
                let (kind, object) = (event.data["kind"].as_str().unwrap_or_default(), &event.data["object"]);
                // a problem is identified by the key of the event
                let problem = || (event.data["key"].as_str().unwrap_or_default().to_owned(), object.clone());
                let (key, object) = if kind == "problem" { problem() } else { reduce(kind, object) };
                if event.data["key"] != *key {
                    self.violations.push(format!("the key does not fit the object: {}", event.data));
                }
                self.objects.insert(key, object);
            }
            "delete" => {
                self.objects.remove(event.data["key"].as_str().unwrap_or_default());
            }
            "synced" => self.is_catching_up = false,
            _ => {}
        }
        if let Some(id) = &event.id {
            self.position = Some(id.clone());
        }
        self.events.push(event);
    }

    /// Checks the rules that apply to every stream.
    fn check(&mut self, event: &Event) {
        let mut add_violation = |rule: &str| self.violations.push(format!("{rule}: {event:?}"));
        if event.data["type"] != *event.name {
            add_violation("`type` is not the event's name");
        }
        let in_snapshot = self.is_catching_up && event.name != "synced";
        if in_snapshot && event.id.is_some() {
            add_violation("an id inside a snapshot");
        }
        if in_snapshot && event.name == "bookmark" {
            add_violation("a bookmark before synced");
        }
        if !in_snapshot && ["upsert", "delete", "synced", "bookmark"].contains(&event.name.as_str()) && event.id.is_none() {
            add_violation("no id");
        }
        if let (Some(before), Some(after)) = (self.position.as_deref().and_then(sequence), event.id.as_deref().and_then(sequence))
            && after < before
            && !self.is_catching_up
        {
            add_violation("a position that goes back");
        }
    }
}

fn sequence(position: &str) -> Option<u64> {
    position.rsplit('.').next()?.parse().ok()
}

async fn follow(response: reqwest::Response, followed: Arc<Mutex<FollowerState>>) {
    let mut bytes = response.bytes_stream();
    let mut buffer = Vec::new();
    while let Some(Ok(chunk)) = bytes.next().await {
        buffer.extend_from_slice(&chunk);
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let block = String::from_utf8(buffer.drain(..end + 2).collect()).expect("must be UTF-8");
            if let Some(event) = parse(&block) {
                followed.lock().unwrap_or_else(PoisonError::into_inner).apply(event);
            }
        }
    }
    followed.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
}

/// Parses an event; returns `None` for a comment.
fn parse(block: &str) -> Option<Event> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim_start().to_owned());
    let name = field("event:")?;
    let data = field("data:").unwrap_or_default();
    let data = serde_json::from_str(&data).unwrap_or_else(|e| panic!("the data of {name} is not JSON ({e}): {data}"));
    Some(Event { name, id: field("id:"), data })
}
