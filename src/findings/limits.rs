//! Limits on published findings.

/// Maximum number of findings in the change stream.
///
/// Nine for each cluster of the largest mesh (511) are 4,600. The others are for findings across
/// keys. Two clusters with the same addresses may have a million of these: `/v1/problems` lists
/// all.
pub(crate) const PUBLISHED_COUNT_MAX: usize = 8_192;

/// Maximum bytes of the texts of all findings in the change stream. A finding has about 0.5 KB, so
/// only texts with very long keys reach this limit.
pub(crate) const PUBLISHED_BYTES_MAX: usize = 16 << 20;
