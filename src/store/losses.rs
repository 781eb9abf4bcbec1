//! What a store has lost, in words for people.

use super::recover::Found;
use super::witness::Testimony;

/// How many ranges are named: after wide damage there may be one for each chunk, a thousand of them with a million keys.
const RANGES_NAMED_MAX: usize = 8;

/// What is missing of a store that has the groups up to `group_number`; empty where it has what was stored last. `damaged_count` values
/// could not be read beside what `found` says.
pub(super) fn losses(found: &Found, testimony: Testimony, group_number: u64, damaged_count: u64) -> Vec<String> {
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
        losses.push(format!("nor from {unnamed} more ranges"));
    }
    if found.suspect_everywhere {
        losses.push("changes may be missing anywhere: all clusters are listed anew".to_owned());
    }
    if group_number < testimony.group_number {
        losses.push(format!("it went back from group {} to {group_number}: its end is lost", testimony.group_number));
    }
    if testimony.suspect {
        losses.push("the witness is missing or damaged, or a repair was broken off: all clusters are listed anew".to_owned());
    }
    if damaged_count > 0 {
        losses.push(format!("{damaged_count} values cannot be read"));
    }
    losses
}
