//! Times as Go's `time.Parse` reads them with the layout `time.RFC3339`, which `metav1.Time` uses
//! (`time/format.go`).
//!
//! Go accepts more than RFC 3339 (an hour of one digit, a comma before the fraction, offsets up to
//! 24:60) and also less (no `t` or `z`, no hour 24, no second 60). No crate parses times as Go
//! does.

use std::time::{Duration, SystemTime};

use jiff::civil::Date;

/// Number of digits of a second's fraction that count.
const NANO_DIGITS: usize = 9;

/// Rest of a text that is being parsed.
struct TimeParser<'a>(&'a str);

impl TimeParser<'_> {
    /// Reads a number of `min` to `max` digits.
    fn number(&mut self, min: usize, max: usize) -> Option<i64> {
        let count = self.0.bytes().take(max).take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.0.split_at_checked(count).filter(|_| count >= min)?;
        self.0 = rest;
        digits.parse().ok()
    }

    fn symbol(&mut self, symbol: char) -> Option<()> {
        self.0 = self.0.strip_prefix(symbol)?;
        Some(())
    }

    /// Reads the fraction of a second in nanoseconds, or 0 if there is none. Digits after the ninth
    /// are ignored.
    fn nanoseconds(&mut self) -> Option<u32> {
        let Some(digits) = self.0.strip_prefix(['.', ',']).filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit())) else {
            return Some(0);
        };
        let count = digits.bytes().take_while(u8::is_ascii_digit).count();
        self.0 = &digits[count..];
        format!("{:0<NANO_DIGITS$}", &digits[..count.min(NANO_DIGITS)]).parse().ok()
    }

    /// Reads the offset from UTC in seconds, positive to the east.
    fn offset(&mut self) -> Option<i64> {
        if self.symbol('Z').is_some() {
            return Some(0);
        }
        let sign = if self.symbol('+').is_some() { 1 } else { self.symbol('-').map(|()| -1)? };
        let hours = self.number(2, 2).filter(|hours| *hours <= 24)?;
        self.symbol(':')?;
        let minutes = self.number(2, 2).filter(|minutes| *minutes <= 60)?;
        Some(sign * (hours * 60 + minutes) * 60)
    }
}

/// Parses a time. `None` if Go rejects it.
pub(super) fn parse_time(text: &str) -> Option<SystemTime> {
    let mut parser = TimeParser(text);
    let year = parser.number(4, 4)?;
    parser.symbol('-')?;
    let month = parser.number(2, 2)?;
    parser.symbol('-')?;
    let day = parser.number(2, 2)?;
    parser.symbol('T')?;
    let hour = parser.number(1, 2).filter(|hour| *hour < 24)?;
    parser.symbol(':')?;
    let minute = parser.number(2, 2).filter(|minute| *minute < 60)?;
    parser.symbol(':')?;
    let second = parser.number(2, 2).filter(|second| *second < 60)?;
    let nanoseconds = parser.nanoseconds()?;
    let offset = parser.offset()?;
    let date = Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
    let days = i64::from(date.since(Date::constant(1970, 1, 1)).ok()?.get_days());
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - offset;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 { SystemTime::UNIX_EPOCH.checked_sub(whole) } else { SystemTime::UNIX_EPOCH.checked_add(whole) };
    start?.checked_add(Duration::from_nanos(nanoseconds.into())).filter(|_| parser.0.is_empty())
}

/// Returns Go's zero time, the start of the year 1. `metav1.Time` writes it as `null`.
pub(super) fn zero_time() -> SystemTime {
    parse_time("0001-01-01T00:00:00Z").unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Formats a time as canaries and heartbeats have it: in whole seconds, in UTC.
#[must_use]
pub fn time_text(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_to_the_second() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_768_210_267_999);
        assert_eq!(time_text(time), "2026-01-12T09:31:07Z");
        assert_eq!(parse_time(&time_text(time)), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_768_210_267)));
    }

    /// The expected seconds and nanoseconds since 1970 are Go 1.26's (`time.Parse(time.RFC3339,
    /// …)`).
    #[test]
    fn times_are_parsed_as_in_go() {
        let cases = [
            ("2026-01-01T00:00:00Z", Some((1_767_225_600, 0))),
            ("2026-01-01T5:00:00Z", Some((1_767_243_600, 0))),
            ("2026-01-01T05:00:00,5Z", Some((1_767_243_600, 500_000_000))),
            ("2026-01-01T05:00:00.123456789123Z", Some((1_767_243_600, 123_456_789))),
            ("2026-01-01T05:00:00.Z", None),
            ("2026-01-01T05:00:00,Z", None),
            ("2026-01-01t05:00:00Z", None),
            ("2026-01-01T05:00:00z", None),
            ("2026-01-01T24:00:00Z", None),
            ("2026-01-01T23:59:60Z", None),
            ("2026-01-01T23:60:00Z", None),
            ("2026-01-01T00:00:00+24:00", Some((1_767_139_200, 0))),
            ("2026-01-01T00:00:00-24:60", Some((1_767_315_600, 0))),
            ("2026-01-01T00:00:00+24:61", None),
            ("2026-01-01T00:00:00+25:00", None),
            ("2026-01-01T00:00:00+23:59", Some((1_767_139_260, 0))),
            ("2026-01-01T00:00:00-00:00", Some((1_767_225_600, 0))),
            ("2026-01-01T00:00:00+0100", None),
            ("2026-01-01T00:00:00+1:00", None),
            ("2026-01-01T00:00:00", None),
            ("2026-01-01T00:00Z", None),
            ("2026-01-01 00:00:00Z", None),
            ("2026-1-01T00:00:00Z", None),
            ("2026-01-1T00:00:00Z", None),
            ("2026-02-29T00:00:00Z", None),
            ("2024-02-29T00:00:00Z", Some((1_709_164_800, 0))),
            ("2026-00-01T00:00:00Z", None),
            ("2026-13-01T00:00:00Z", None),
            ("2026-01-00T00:00:00Z", None),
            ("2026-04-31T00:00:00Z", None),
            ("0000-01-01T00:00:00Z", Some((-62_167_219_200, 0))),
            ("0001-01-01T00:00:00Z", Some((-62_135_596_800, 0))),
            ("0001-01-01T01:00:00+01:00", Some((-62_135_596_800, 0))),
            ("9999-12-31T23:59:59Z", Some((253_402_300_799, 0))),
            ("9999-12-31T23:59:59-24:00", Some((253_402_387_199, 0))),
            ("0000-01-01T00:00:00+24:60", Some((-62_167_309_200, 0))),
            ("10000-01-01T00:00:00Z", None),
            ("-001-01-01T00:00:00Z", None),
            ("+2026-01-01T00:00:00Z", None),
            (" 2026-01-01T00:00:00Z", None),
            ("2026-01-01T00:00:00Z ", None),
            ("2026-01-01T00:00:00Zx", None),
            ("1969-12-31T23:59:59.5Z", Some((-1, 500_000_000))),
            ("2026-01-01T00:0:00Z", None),
            ("2026-01-01T00:00:0Z", None),
            ("2026-01-01T5:00:00.25+02:00", Some((1_767_236_400, 250_000_000))),
            ("2026-01-01T00:00:00.1234567891Z", Some((1_767_225_600, 123_456_789))),
            ("", None),
            ("2026-01-01T00:00:00²Z", None),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|(seconds, nanoseconds): (i64, u64)| {
                let whole = Duration::from_secs(seconds.unsigned_abs());
                let start = if seconds < 0 { SystemTime::UNIX_EPOCH - whole } else { SystemTime::UNIX_EPOCH + whole };
                start + Duration::from_nanos(nanoseconds)
            });
            assert_eq!(parse_time(text), expected, "{text}");
        }
    }
}
