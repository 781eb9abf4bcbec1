//! Notes about answers on an earlier time: what is not known, and which versions an object may be.

use serde::Serialize;

use super::output::{labels, one_line};
use crate::dto::lookup::LookupItem;
use crate::dto::meta::{ItemMeta, PastMeta, UnknownPeriod};
use crate::dto::objects::last_change::LastChange;
use crate::dto::streamed::{EntryVersion, StreamedObject};

/// Returns a line for each reason why an answer about an earlier time may be wrong.
pub(in crate::cli) fn past_notes(meta: &ItemMeta) -> String {
    let candidates = meta.past.candidates.iter().map(describe_candidate);
    past_gaps(meta.past.complete, &meta.past.gaps) + &candidates.collect::<String>()
}

/// Time of an answer in several parts about an earlier time, and what these parts do not know.
#[derive(Debug, Default, Serialize)]
pub(in crate::cli) struct PastSummary(PastMeta);

impl PastSummary {
    /// Adds the members of one part's `meta`. Its candidates are those of single objects, which
    /// parts do not have.
    pub(in crate::cli) fn add(&mut self, part: PastMeta) {
        let PastMeta { at, complete, gaps, .. } = &mut self.0;
        *at = at.take().or(part.at);
        *complete = [*complete, part.complete].into_iter().flatten().min();
        for gap in part.gaps {
            // the parts have many gaps in common
            if !gaps.contains(&gap) {
                gaps.push(gap);
            }
        }
    }

    /// Returns the time that the answer describes; `None` for the newest data.
    pub(in crate::cli) fn at(&self) -> Option<&str> {
        self.0.at.as_deref()
    }

    /// Returns a line for each reason why the answer may be wrong.
    pub(in crate::cli) fn notes(&self) -> String {
        past_gaps(self.0.complete, &self.0.gaps)
    }
}

fn past_gaps(complete: Option<bool>, gaps: &[UnknownPeriod]) -> String {
    let mut notes = String::new();
    if complete == Some(false) {
        notes += "note: the answer may be wrong, because meshkeep did not observe everything at that time, or lost changes since then\n";
    }
    notes.extend(gaps.iter().map(describe_gap));
    notes
}

/// Returns a note about a version that an object may have had, with its line end.
fn describe_candidate(version: &EntryVersion) -> String {
    let end = version.to.as_ref().map_or_else(|| "is current".to_owned(), |to| format!("ended {}", describe_change(to)));
    one_line(&format!("note: it may be the version of {} that began {} and {end}", version.key, describe_change(&version.from))) + "\n"
}

pub(in crate::cli) fn describe_candidates(item: &LookupItem) -> String {
    item.candidates.iter().map(|version| describe_candidate(version).replacen("it may", &format!("{} may", item.ip), 1)).collect()
}

/// Returns the labels and the end of the last version of an identity that no cluster has, for the
/// end of an error message.
pub(in crate::cli) fn describe_last_version(version: &EntryVersion) -> String {
    let (Some(StreamedObject::Identity(identity)), Some(end)) = (&version.object, &version.to) else { return String::new() };
    let cluster = identity.cluster.as_deref().unwrap_or_default();
    format!("; {cluster} deleted it {}, with the labels {}", describe_change(end), labels(identity.labels.0.iter()))
}

/// Returns the time of a change as text.
pub(in crate::cli) fn describe_change(change: &LastChange) -> String {
    match change {
        LastChange { changed_at: Some(time), .. } => format!("at {time}"),
        LastChange { changed_between: Some([from, to]), .. } => format!("between {from} and {to}"),
        LastChange { first_seen_at: Some(time), .. } => format!("before {time}"),
        _ => "at an unknown time".to_owned(),
    }
}

/// Returns a note about a period whose changes are not known, with its line end.
pub(in crate::cli) fn describe_gap(gap: &UnknownPeriod) -> String {
    let (from, to) = (gap.from.as_deref().unwrap_or("the beginning"), gap.to.as_deref().unwrap_or("now"));
    let what = match (&gap.cluster, &gap.kind) {
        (Some(cluster), Some(kind)) => format!("the {kind} data of cluster {cluster} was not observed"),
        _ => "meshkeep lost the changes".to_owned(),
    };
    one_line(&format!("note: {what} from {from} to {to}")) + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::terminal::output::parse_answer;

    #[test]
    fn an_uncertain_answer_has_a_note_for_each_reason() {
        let version = |identity: u32, from: Value, to: Value| {
            json!({"kind": "ipcache", "key": "cilium/cache/ip/v1/paris/10.1.4.1", "from": from, "to": to, "ended": "updated",
                "object": {"prefix": "10.1.4.1/32", "host": true, "cluster": "paris", "identity": identity, "source": "clustermesh"}})
        };
        let between = json!({"changedBetween": ["2026-01-01T00:01:40Z", "2026-01-01T00:03:20Z"]});
        let meta = json!({"position": "v1.a.1", "complete": false,
            "gaps": [{"cluster": "paris", "kind": "ipcache", "from": "2026-01-01T00:01:40Z"}],
            "candidates": [version(70_001, json!({"firstSeenAt": "2026-01-01T00:00:00Z"}), between)]});
        let expected = "note: the answer may be wrong, because meshkeep did not observe everything at that time, or lost changes since then
note: the ipcache data of cluster paris was not observed from 2026-01-01T00:01:40Z to now
note: it may be the version of cilium/cache/ip/v1/paris/10.1.4.1 that began before 2026-01-01T00:00:00Z and ended between \
                        2026-01-01T00:01:40Z and 2026-01-01T00:03:20Z
";
        assert_eq!(past_notes(&parse_answer(&meta).unwrap()), expected);
        assert_eq!(past_notes(&parse_answer(&json!({"position": "v1.a.1", "complete": true})).unwrap()), "");
    }

    #[test]
    fn a_former_identity_has_its_labels_and_its_end() {
        let version = json!({"kind": "identity", "key": "cilium/cache/identities/v1/paris/id/70001", "from": {}, "ended": "deleted",
            "to": {"changedAt": "2026-01-01T00:00:50Z"},
            "object": {"id": 70001, "cluster": "paris", "scope": "global", "labels": {"k8s:app": "cart"}}});
        let text = describe_last_version(&parse_answer(&version).unwrap());
        assert_eq!(text, "; paris deleted it at 2026-01-01T00:00:50Z, with the labels k8s:app=cart");
    }
}
