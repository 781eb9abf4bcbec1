//! Limits on published findings.

/// Maximum number of findings in the change stream.
///
/// Nine findings for each of the 511 clusters of the largest mesh are 4,600, which leaves 3,600 for
/// findings across keys. Two clusters with the same addresses may have a million of these. Only
/// `/v1/problems` lists all.
pub(crate) const PUBLISHED_COUNT_MAX: usize = 8_192;

/// Maximum bytes of the texts of all findings in the change stream. A finding has about 0.5 KB, so
/// only texts with very long keys reach this limit.
pub(crate) const PUBLISHED_BYTES_MAX: usize = 16 << 20;
