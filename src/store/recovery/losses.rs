//! Human-readable descriptions of the losses of a store.

use super::slot_scan::DamageReport;

/// Maximum number of ranges that are named. After wide damage there may be a thousand, one for each
/// chunk.
const RANGES_NAMED_MAX: usize = 8;

/// Describes the losses of a store. Empty if nothing was lost. `undecodable_count` is the number of
/// values that could not be decoded.
pub(in crate::store) fn describe_losses(damage: &DamageReport, undecodable_count: u64) -> Vec<String> {
    let mut losses = Vec::new();
    if damage.damaged_count > 0 {
        losses.push(format!("{} slots are damaged", damage.damaged_count));
    }
    for (low, high) in damage.lost.iter().take(RANGES_NAMED_MAX) {
        let end = high.as_ref().map_or_else(|| "the end".to_owned(), |high| high.escape_ascii().to_string());
        losses.push(format!("nothing can be read from \"{}\" up to {end}", low.escape_ascii()));
    }
    let unnamed = damage.lost.len().saturating_sub(RANGES_NAMED_MAX);
    if unnamed > 0 {
        losses.push(format!("nothing can be read from {unnamed} more ranges"));
    }
    if damage.suspect_everywhere {
        losses.push("changes may be missing anywhere: meshkeep lists all clusters again".to_owned());
    }
    losses.extend(damage.doubts.iter().map(|doubt| format!("{doubt}: meshkeep lists all clusters again")));
    if undecodable_count > 0 {
        losses.push(format!("{undecodable_count} values cannot be read"));
    }
    losses
}
