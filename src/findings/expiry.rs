//! Findings about certificates that expire soon.

use std::time::{Duration, SystemTime};

use crate::dto::text::rfc3339;
use crate::model::{FindingKind, FindingObject, Severity};

/// Times before the expiry of a certificate at which it is reported, and at which the finding
/// becomes critical. Certificate authorities usually send reminders at these times.
const REPORTED_BEFORE: Duration = Duration::from_secs(30 * 86_400);
const CRITICAL_BEFORE: Duration = Duration::from_secs(7 * 86_400);

/// Returns the finding about a certificate that expires within 30 days.
pub(super) fn expiry_finding(
    (subject, what): (&str, &str),
    clusters: impl IntoIterator<Item = impl ToString>,
    expiry: SystemTime,
) -> Option<FindingObject> {
    let left = expiry.duration_since(SystemTime::now()).unwrap_or_default();
    if left > REPORTED_BEFORE {
        return None;
    }
    let at = rfc3339(expiry);
    let detail = match left.as_secs() / 86_400 {
        _ if left.is_zero() => format!("{what} expired at {at}"),
        0 => format!("{what} expires at {at}, within a day"),
        1 => format!("{what} expires at {at}, in a day"),
        days => format!("{what} expires at {at}, in {days} days"),
    };
    let expiring = FindingObject::new(FindingKind::CertificateExpiring, subject, clusters, detail);
    Some(if left <= CRITICAL_BEFORE { FindingObject { severity: Severity::Critical, ..expiring } } else { expiring })
}
