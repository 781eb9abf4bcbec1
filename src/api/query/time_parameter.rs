//! Times in parameters: RFC 3339, or a duration before now.

use std::time::SystemTime;

use crate::api::problem::{Problem, ProblemCode};
use crate::dto::text::rfc3339;
use crate::handle::PastReading;
use crate::model::parse_duration;

/// Parses the time in a parameter.
///
/// # Errors
/// A problem that names the parameter and the valid forms.
pub(crate) fn parse_time_parameter(name: &str, text: &str, now: SystemTime) -> Result<SystemTime, Problem> {
    let before_now = || now.checked_sub(parse_duration(text).ok()?);
    let time = text.parse::<jiff::Timestamp>().ok().map(SystemTime::from).or_else(before_now);
    let form = "write it as in RFC 3339, for example 2026-11-26T14:03:00Z, or as a duration before now, for example 10m or 2h";
    let time = time.ok_or_else(|| Problem::bad_parameter(name, format!("{text:?} is not a time: {form}")))?;
    if time > now {
        return Err(Problem::bad_parameter(name, format!("{text:?} is in the future: {form}")));
    }
    Ok(time)
}

/// Returns the problem for an `at` before the history begins.
pub(crate) fn before_history(past: &PastReading) -> Problem {
    let since = past.since().map_or_else(|| "has no changes yet".to_owned(), |since| format!("begins at {}", rfc3339(since)));
    Problem::bad_parameter("at", format!("the history {since}: choose a later time"))
}

/// Returns the problem for a request with `at` that also limits the age of its answer.
pub(crate) fn age_of_past() -> Problem {
    Problem::bad_parameter("maxAge", "is only for the newest data: omit maxAge or at")
}

/// Returns the problem for a question about the past without a history.
pub(crate) fn without_history() -> Problem {
    Problem::new(ProblemCode::NotFound, "meshkeep keeps no history: start it without --history off")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_absolute_or_a_duration_before_now() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let parsed = |text: &str| parse_time_parameter("since", text, now).ok().map(|time| now.duration_since(time).unwrap().as_secs());
        for (text, expected) in [
            ("10m", Some(600)),
            ("2h", Some(7_200)),
            ("1h30m", Some(5_400)),
            ("2d", Some(172_800)),
            ("1d12h", Some(129_600)),
            ("1970-01-12T13:46:30Z", Some(10)),
            ("1970-01-12T14:46:30+01:00", Some(10)),
            ("1970-01-12T13:46:50Z", None),
            ("-10m", None),
            ("10", None),
            ("yesterday", None),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }
}
