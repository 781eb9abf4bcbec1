//! Severity and advice of each kind of finding, and the limits on published findings.

use crate::model::{FindingObject, Severity};

/// Each kind with its severity. `critical`: something is not served, or not for long; `warning`:
/// something is served that is probably not meant; `info`: something that passes by itself, or that
/// nobody need do anything about today.
pub(crate) const KINDS: [(&str, Severity); 33] = [
    ("certificateExpiring", Severity::Warning),
    ("clusterConfigLost", Severity::Warning),
    ("clusterConfigMissing", Severity::Critical),
    ("clusterConfigRefused", Severity::Critical),
    ("clusterFileInvalid", Severity::Critical),
    ("clusterFileMisspelt", Severity::Warning),
    ("clusterStuck", Severity::Warning),
    ("clusterTooLarge", Severity::Critical),
    ("clusterUnreachable", Severity::Critical),
    ("clusterUnreadable", Severity::Critical),
    ("danglingHostIP", Severity::Warning),
    ("danglingIdentity", Severity::Warning),
    ("directoryUnreadable", Severity::Critical),
    ("duplicateAddress", Severity::Warning),
    ("duplicateClusterID", Severity::Critical),
    ("exportConflict", Severity::Warning),
    ("findingsOmitted", Severity::Info),
    ("heldEntries", Severity::Info),
    ("identityOutOfRange", Severity::Warning),
    ("logGap", Severity::Warning),
    ("noClusters", Severity::Critical),
    ("overlappingNodePodCIDR", Severity::Warning),
    ("overlappingPodCIDR", Severity::Warning),
    ("progressUnanswered", Severity::Info),
    ("rejectedValues", Severity::Warning),
    ("revisionWentBack", Severity::Warning),
    ("serviceTooLarge", Severity::Critical),
    ("sourceLost", Severity::Warning),
    ("staleFile", Severity::Warning),
    ("storeLosses", Severity::Warning),
    ("storeUnwritable", Severity::Critical),
    ("targetUnwritable", Severity::Critical),
    ("writerSilent", Severity::Warning),
];

/// Maximum number of findings in the change stream.
///
/// Nine for each cluster of the largest mesh (511) are 4,600. The others are for findings across
/// keys. Two clusters with the same addresses may have a million of these: `/v1/problems` lists
/// all.
pub(crate) const PUBLISHED_COUNT_MAX: usize = 8_192;

/// Maximum bytes of the texts of all findings in the change stream. A finding has about 0.5 KB, so
/// only texts with very long keys reach this limit.
pub(crate) const PUBLISHED_BYTES_MAX: usize = 16 << 20;

/// A finding of a kind about a subject, of clusters; `detail` says what is wrong and `advice` what
/// to do.
pub(crate) fn finding(
    kind: &'static str,
    subject: &str,
    clusters: impl IntoIterator<Item = impl ToString>,
    detail: impl Into<String>,
    advice: impl Into<String>,
) -> FindingObject {
    FindingObject {
        id: if subject.is_empty() { kind.to_owned() } else { format!("{kind}/{subject}") },
        kind,
        severity: KINDS.iter().find(|(known, _)| *known == kind).map_or(Severity::Warning, |(_, severity)| *severity),
        clusters: clusters.into_iter().map(|cluster| cluster.to_string()).collect(),
        detail: detail.into(),
        advice: advice.into(),
        since: None,
        count: None,
        key: None,
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS, Severity};

    #[test]
    fn kinds_are_in_order_and_severities_are_told_by_how_bad_they_are() {
        assert!(KINDS.is_sorted_by(|(one, _), (other, _)| one < other));
        assert!(Severity::ALL.is_sorted());
    }
}
