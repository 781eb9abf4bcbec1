//! Durations in settings and parameters.

use std::time::Duration;

/// A day of 24 hours.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Parses `800ms`, `15s`, `1m30s`, `24h` or `7d`.
///
/// # Errors
/// Returns a message that names the valid forms.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    // jiff accepts no days, because they can have 23 or 25 hours
    let with_days = text.split_once('d').and_then(|(days, rest)| Some((DAY * u32::from(days.parse::<u16>().ok()?), rest)));
    let parse = |text: &str| text.parse::<jiff::SignedDuration>().ok().and_then(|signed| Duration::try_from(signed).ok());
    let duration = match with_days {
        Some((days, "")) => Some(days),
        Some((days, rest)) => parse(rest).map(|rest| days + rest),
        None => parse(text),
    };
    duration.ok_or_else(|| "must be a duration such as 800ms, 15s, 1m30s, 24h or 7d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let cases = [
            ("800ms", 800),
            ("15s", 15_000),
            ("1m30s", 90_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("1d12h", 129_600_000),
            ("0s", 0),
        ];
        for (text, milliseconds) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for bad in ["", "15", "-3s", "soon", "1y", "d", "-1d", "1d2"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
