//! Age of an object: the time since its last change, as in kubectl's `AGE`.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;

use super::output::age;
use crate::dto::objects::last_change::LastChange;

/// Returns the time from the last change until `time`: `5m`, `5m-2h` if it is only known to be
/// between two ages, `>5m` if the object was older when meshkeep first saw it, or nothing if it is
/// not known.
pub(in crate::cli) fn change_age(change: &LastChange, time: Timestamp) -> String {
    let age_of = |text: &String| text.parse::<Timestamp>().ok().map(|changed| whole_age(time.duration_since(changed).as_secs()));
    let exact = change.changed_at.as_ref().and_then(age_of);
    let between = || {
        let [from, to] = change.changed_between.as_ref()?;
        let (oldest, youngest) = (age_of(from)?, age_of(to)?);
        Some(if oldest == youngest { oldest } else { format!("{youngest}-{oldest}") })
    };
    let at_least = || change.first_seen_at.as_ref().and_then(age_of).map(|age| format!(">{age}"));
    exact.or_else(between).or_else(at_least).unwrap_or_default()
}

/// Returns an age in whole seconds, the precision of the times of changes.
fn whole_age(seconds: i64) -> String {
    if seconds < 10 { format!("{}s", seconds.max(0)) } else { age(Duration::from_secs(seconds.unsigned_abs()).as_secs_f64()) }
}

/// Returns the time of the last change of an item in an answer: of the object itself, of the entry
/// that a lookup found, or of a global service in any of its clusters.
pub(super) fn newest_change(item: &Value) -> Option<Timestamp> {
    let of_clusters = item.get("clusters").and_then(Value::as_array).into_iter().flatten();
    let parts = std::iter::once(item).chain(item.get("match")).chain(of_clusters);
    let times = parts.filter_map(|part| newest_time(&LastChange::deserialize(part).ok()?));
    times.max()
}

/// Returns the latest time at which the change can have happened.
pub(in crate::cli) fn newest_time(change: &LastChange) -> Option<Timestamp> {
    let LastChange { changed_at, changed_between, first_seen_at } = change;
    let latest = changed_between.as_ref().map(|[_, to]| to);
    changed_at.as_ref().or(latest).or(first_seen_at.as_ref())?.parse().ok()
}

/// Returns the last of several changes, as exactly as it is known: it is not before the earliest
/// possible time of any change.
pub(in crate::cli) fn last_of<'a>(changes: impl Iterator<Item = &'a LastChange> + Clone) -> LastChange {
    let parsed = |text: &String| text.parse::<Timestamp>().ok();
    let earliest = |change: &LastChange| parsed(change.changed_at.as_ref().or(change.changed_between.as_ref().map(|[from, _]| from))?);
    let (from, to) = (changes.clone().filter_map(earliest).max(), changes.filter_map(newest_time).max());
    match (from, to) {
        (Some(from), Some(to)) if from < to => {
            LastChange { changed_between: Some([from, to].map(|time| time.to_string())), ..LastChange::default() }
        }
        (Some(_), to) => LastChange { changed_at: to.map(|time| time.to_string()), ..LastChange::default() },
        (None, to) => LastChange { first_seen_at: to.map(|time| time.to_string()), ..LastChange::default() },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_age_shows_how_exactly_it_is_known() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        for (change, expected) in [
            (json!({}), ""),
            (json!({"changedAt": "2026-01-01T11:55:00Z"}), "5m"),
            (json!({"changedBetween": ["2026-01-01T10:00:00Z", "2026-01-01T11:55:00Z"]}), "5m-2h"),
            (json!({"changedBetween": ["2026-01-01T10:00:10Z", "2026-01-01T10:00:20Z"]}), "1h59m"),
            (json!({"firstSeenAt": "2025-12-29T12:00:00Z"}), ">3d"),
        ] {
            let change: LastChange = serde_json::from_value(change).unwrap();
            assert_eq!(change_age(&change, now), expected, "{change:?}");
        }
    }

    #[test]
    fn the_last_of_several_changes_is_in_the_last_possible_period() {
        let [one, two, three] = ["2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z"];
        for (changes, expected) in [
            (json!([{"changedAt": one}, {"changedAt": two}]), json!({"changedAt": two})),
            (json!([{"changedAt": two}, {"changedBetween": [one, three]}]), json!({"changedBetween": [two, three]})),
            (json!([{"changedAt": one}, {"firstSeenAt": three}]), json!({"changedBetween": [one, three]})),
            (json!([{"firstSeenAt": one}, {"firstSeenAt": two}, {}]), json!({"firstSeenAt": two})),
            (json!([{}]), json!({})),
        ] {
            let parsed: Vec<LastChange> = serde_json::from_value(changes.clone()).unwrap();
            assert_eq!(serde_json::to_value(last_of(parsed.iter())).unwrap(), expected, "{changes}");
        }
    }

    #[test]
    fn the_newest_change_of_an_item_counts() {
        let time = |hour: u32| format!("2026-01-01T{hour:02}:00:00Z");
        for (item, expected) in [
            (json!({"changedAt": time(1)}), Some(1)),
            (json!({"match": {"firstSeenAt": time(2)}}), Some(2)),
            (json!({"clusters": [{"changedAt": time(3)}, {"changedBetween": [time(1), time(4)]}]}), Some(4)),
            (json!({"match": null}), None),
        ] {
            assert_eq!(newest_change(&item), expected.map(|hour| time(hour).parse().unwrap()), "{item}");
        }
    }
}
