//! Certificates that end soon.

use std::time::{Duration, SystemTime};

use super::finding;
use crate::dto::text::rfc3339;
use crate::model::{FindingObject, Severity};

/// How long before a certificate ends it is told, and when that is urgent: as most who renew by hand are told.
const TOLD: Duration = Duration::from_secs(30 * 86_400);
const URGENT: Duration = Duration::from_secs(7 * 86_400);

/// That a certificate ends, where it does within the month.
pub(super) fn expiring(
    (subject, what): (&str, &str),
    clusters: impl IntoIterator<Item = impl ToString>,
    expiry: SystemTime,
    advice: &str,
) -> Option<FindingObject> {
    let left = expiry.duration_since(SystemTime::now()).unwrap_or_default();
    if left > TOLD {
        return None;
    }
    let at = rfc3339(expiry);
    let detail = match left.as_secs() / 86_400 {
        _ if left.is_zero() => format!("{what} expired at {at}"),
        0 => format!("{what} expires at {at}, within a day"),
        1 => format!("{what} expires at {at}, in a day"),
        days => format!("{what} expires at {at}, in {days} days"),
    };
    let told = finding("certificateExpiring", subject, clusters, detail, advice);
    Some(if left <= URGENT { FindingObject { severity: Severity::Critical, ..told } } else { told })
}
