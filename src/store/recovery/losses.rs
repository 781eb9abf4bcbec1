//! What a store has lost, in words for people.

use super::slot_scan::DamageReport;

/// How many ranges are named: after wide damage there may be one for each chunk, a thousand of them with a million keys.
const RANGES_NAMED_MAX: usize = 8;

/// What is missing of a store; empty where it has what was stored last. `damaged_count` values could not be read beside what `found` says.
pub(in crate::store) fn losses(found: &DamageReport, damaged_count: u64) -> Vec<String> {
    let mut losses = Vec::new();
    if found.damaged_count > 0 {
        losses.push(format!("{} slots are damaged", found.damaged_count));
    }
    for (low, high) in found.lost.iter().take(RANGES_NAMED_MAX) {
        let end = high.as_ref().map_or_else(|| "the end".to_owned(), |high| high.escape_ascii().to_string());
        losses.push(format!("nothing can be read from \"{}\" up to {end}", low.escape_ascii()));
    }
    let unnamed = found.lost.len().saturating_sub(RANGES_NAMED_MAX);
    if unnamed > 0 {
        losses.push(format!("and from {unnamed} more ranges"));
    }
    if found.suspect_everywhere {
        losses.push("changes may be missing anywhere: meshkeep lists all clusters again".to_owned());
    }
    losses.extend(found.doubts.iter().map(|doubt| format!("{doubt}: meshkeep lists all clusters again")));
    if damaged_count > 0 {
        losses.push(format!("{damaged_count} values cannot be read"));
    }
    losses
}
