//! Comparison while nothing changes: at the same position, a checker's state must be equal to the
//! lists.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::checker::CheckerHandle;
use super::decode::Page;
use super::spec::{KINDS, Kind};
use super::state::{Phase, Position, State};
use crate::harness::meshkeep::http;

/// Maximum time until a checker has the same state as the lists after the last change. It may have
/// to start with a snapshot.
const CATCHING_UP: Duration = Duration::from_secs(40);

/// Maximum time until a bookmark arrives. The server sends one at least every 15 s
/// (docs/use/api/streams.md).
const BOOKMARK_WAIT: Duration = Duration::from_secs(25);

/// Maximum number of differences shown.
const DIFFERENCES_SHOWN: usize = 6;

/// All pages of a list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) position: String,
    pub(super) items: Vec<Box<RawValue>>,
}

/// All lists at one position.
pub(super) struct Snapshot {
    url: String,
    position_text: String,
    position: Position,
    objects: BTreeMap<Kind, Vec<String>>,
}

/// Way in which a checker that has received all changes gets the newest position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CatchUpMethod {
    /// The checker disconnects and resumes.
    Resume,
    /// The checker waits for a bookmark.
    Bookmark,
}

/// Reads a list to its end. Returns `None` if the server ends or no longer accepts the page token
/// meanwhile.
pub(super) async fn read_list(url: &str, path: &str) -> Option<List> {
    let mut items = Vec::new();
    let mut token = String::new();
    let mut position: Option<String> = None;
    loop {
        let response = http().get(format!("{url}{path}{token}")).send().await.ok()?;
        if response.status() != 200 {
            return None;
        }
        let page: Page = serde_json::from_slice(&response.bytes().await.ok()?).ok()?;
        let first = position.get_or_insert_with(|| page.meta.position.clone());
        let sequence = |position: &str| position.rsplit('.').next().map(str::to_owned);
        assert_eq!(sequence(first), sequence(&page.meta.position), "all pages of {path} must have the position of the first");
        items.extend(page.items);
        match page.next_page_token {
            Some(next) => token = format!("&pageToken={next}"),
            None => return position.map(|position| List { position, items }),
        }
    }
}

impl Snapshot {
    /// Reads all lists. Returns `None` if something changed meanwhile.
    async fn read_if_quiet(url: &str) -> Option<Self> {
        let status: Value = http().get(format!("{url}/v1/status")).send().await.ok()?.json().await.ok()?;
        let position_text = status["position"].as_str()?.to_owned();
        let mut objects = BTreeMap::new();
        for kind in KINDS {
            let list = read_list(url, &format!("{}?limit=10000", kind.path())).await?;
            if list.position != position_text {
                return None;
            }
            objects.insert(kind, list.items.iter().map(|item| kind.comparable_part(item.get()).into_string()).collect());
        }
        Some(Self { url: url.to_owned(), position: Position::parse(&position_text)?, position_text, objects })
    }

    /// Waits until nothing changes any more, and returns all lists at one position.
    pub(super) async fn read_when_quiet(url: &str) -> Self {
        let deadline = Instant::now() + CATCHING_UP;
        loop {
            if let Some(snapshot) = Self::read_if_quiet(url).await {
                return snapshot;
            }
            assert!(Instant::now() < deadline, "the lists never had one position in common");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the objects of a kind that a checker should have.
    fn expected(&self, checker: &CheckerHandle, kind: Kind) -> Vec<&str> {
        let all = self.objects[&kind].iter().map(String::as_str);
        if !checker.spec.kinds.contains(&kind) {
            return Vec::new();
        }
        if !checker.spec.is_filtered() {
            return all.collect();
        }
        let passes = |item: &&str| (checker.spec.passes)(&serde_json::from_str(item).expect("must be JSON: it was parsed before"));
        all.filter(passes).collect()
    }

    /// Checks that the server's filtered lists contain what the filter means.
    async fn check_filtered_lists(&self, checker: &CheckerHandle) -> Result<(), String> {
        for kind in checker.spec.kinds {
            let path = format!("{}?limit=10000{}", kind.path(), checker.spec.list_filter());
            let list = read_list(&self.url, &path).await.ok_or_else(|| format!("{path} is not answered"))?;
            let items: Vec<Box<str>> = list.items.iter().map(|item| kind.comparable_part(item.get())).collect();
            let items = items.iter().map(|item| &**item).collect();
            if list.position == self.position_text
                && let Some(difference) = difference(self.expected(checker, *kind), items)
            {
                return Err(format!("{path} compared with the filter of this test: {difference}"));
            }
        }
        Ok(())
    }

    /// Waits until a checker has the right state at the position of the lists or a later one. Later
    /// positions exist because findings have sequences, too, but change no list. Returns the number
    /// of compared kinds.
    pub(super) async fn compare(&self, checker: &CheckerHandle, reaching: CatchUpMethod) -> Result<u64, String> {
        if checker.spec.is_filtered() {
            self.check_filtered_lists(checker).await?;
        }
        let expected: HashMap<Kind, Vec<&str>> = KINDS.map(|kind| (kind, self.expected(checker, kind))).into();
        let mut deadline = Instant::now() + CATCHING_UP;
        let mut nudged = false;
        loop {
            let (has_reached, is_synced, progress, difference) = {
                let state = checker.shared.state();
                let is_synced = state.phase == Phase::Synced;
                let has_reached = is_synced && state.position.as_ref().is_some_and(|position| position.reaches(&self.position));
                // while the checker is behind, comparing costs more than waiting
                let difference = is_synced.then(|| differences(&expected, &state)).flatten();
                (has_reached, is_synced, format!("{:?} at {:?}", state.phase, state.position), difference)
            };
            let name = checker.spec.name;
            match difference {
                Some(difference) if has_reached => return Err(format!("checker {name} at the position of the lists: {difference}")),
                None if has_reached => return Ok(KINDS.len() as u64),
                // the state is right, so the stream has sent every change; only the position is
                // earlier than that of the lists
                None if is_synced && !nudged => {
                    nudged = true;
                    match reaching {
                        CatchUpMethod::Resume => checker.shared.nudge.notify_one(),
                        CatchUpMethod::Bookmark => deadline = Instant::now() + BOOKMARK_WAIT,
                    }
                }
                difference if Instant::now() >= deadline => {
                    let difference = difference.unwrap_or_default();
                    return Err(format!("checker {name} does not reach {}: {progress}: {difference}", self.position_text));
                }
                _ => {}
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn differences(expected: &HashMap<Kind, Vec<&str>>, state: &State) -> Option<String> {
    KINDS.into_iter().find_map(|kind| {
        let received = state.objects.values().filter(|object| object.kind == kind).map(|object| &*object.text).collect();
        difference(expected[&kind].clone(), received).map(|text| format!("{}: {text}", kind.name()))
    })
}

/// Returns the differences between two sets of objects, or `None`. Most objects are equal byte for
/// byte.
fn difference(mut expected: Vec<&str>, mut actual: Vec<&str>) -> Option<String> {
    expected.sort_unstable();
    actual.sort_unstable();
    if expected == actual {
        return None;
    }
    let (in_lists, in_checker): (BTreeSet<&str>, BTreeSet<&str>) = (expected.iter().copied().collect(), actual.iter().copied().collect());
    let canonical = |texts: Vec<&&str>| -> BTreeSet<String> { texts.into_iter().map(|text| canonical(text)).collect() };
    let missing = canonical(in_lists.difference(&in_checker).collect());
    let left_over = canonical(in_checker.difference(&in_lists).collect());
    if missing == left_over && expected.len() == actual.len() {
        return None;
    }
    let show = |what: &str, from: &BTreeSet<String>, other: &BTreeSet<String>| -> String {
        let lines = from.difference(other).take(DIFFERENCES_SHOWN).map(|text| format!("\n  {what} {text}"));
        lines.collect()
    };
    let (listed, received) = (expected.len(), actual.len());
    let lines = show("listed only:", &missing, &left_over) + &show("received only:", &left_over, &missing);
    Some(format!("{listed} listed, {received} received{lines}"))
}

/// Returns an object in a form that does not depend on the order of members and backends, without
/// the time of its last change: a change that ends with the same object has no event.
fn canonical(text: &str) -> String {
    let mut value: Value = serde_json::from_str(text).unwrap_or_default();
    if let Some(members) = value.as_object_mut() {
        members.retain(|name, _| !["changedAt", "changedBetween", "firstSeenAt"].contains(&name.as_str()));
    }
    if let Some(backends) = value.get_mut("backends").and_then(Value::as_array_mut) {
        backends.sort_by_key(ToString::to_string);
    }
    value.to_string()
}

#[test]
fn missing_extra_and_changed_objects_are_detected() {
    let (a, b, c) = (r#"{"x":1,"y":2}"#, r#"{"x":2}"#, r#"{"y":2,"x":1}"#);
    assert_eq!(difference(vec![a, b], vec![b, a]), None);
    assert_eq!(difference(vec![a, b], vec![b, c]), None, "the order of members does not matter");
    for (expected, actual) in [(vec![a, b], vec![a]), (vec![a], vec![a, b]), (vec![a], vec![b]), (vec![a], vec![a, a])] {
        assert!(difference(expected, actual).is_some());
    }
}
