//! Text forms of times, durations, addresses and prefixes.

use std::fmt::{Display, Write as _};
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// Length of the longest IPv4 prefix as text (`255.255.255.255/32`), in bytes.
const PREFIX_LENGTH: usize = 18;

/// Formats a time as RFC 3339 in UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// Returns a duration in seconds, rounded to the millisecond.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round() / 1_000.0
}

/// Formats a value into a buffer that is allocated with `length` bytes, so that it need not grow.
pub(crate) fn format_with_capacity(value: &impl Display, length: usize) -> String {
    let mut text = String::with_capacity(length);
    // writing to a string cannot fail
    let _ = write!(text, "{value}");
    text
}

/// Deserializes a value from its text.
pub(crate) fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// Formats an address. IPv4 has its own fast formatter, because each event has two addresses.
pub(crate) fn format_ip(ip: IpAddr) -> String {
    let IpAddr::V4(ip) = ip else { return ip.to_string() };
    let mut text = String::with_capacity(PREFIX_LENGTH);
    for (index, octet) in ip.octets().into_iter().enumerate() {
        if index > 0 {
            text.push('.');
        }
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let zeros = digits[..2].iter().take_while(|digit| **digit == 0).count();
        digits[zeros..].iter().for_each(|digit| text.push(char::from(b'0' + digit)));
    }
    text
}

/// Formats a prefix with its length.
pub(crate) fn format_net(net: IpNet) -> String {
    let mut text = format_ip(net.addr());
    let _ = write!(text, "/{}", net.prefix_len());
    text
}

/// Returns the text, or `None` if it is empty.
pub(crate) fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes_have_the_standard_form() {
        for octet in 0..=u8::MAX {
            let ip = IpAddr::from([octet, 0, 255, octet]);
            assert_eq!(format_ip(ip), ip.to_string());
        }
        for text in ["10.1.0.0/16", "0.0.0.0/0", "255.255.255.255/32", "fd00:10::/64", "::ffff:10.0.0.1/128"] {
            assert_eq!(format_net(text.parse().unwrap()), text);
        }
    }

    #[test]
    fn times_and_ages_have_milliseconds() {
        let since = Duration::from_micros(1_768_210_267_123_900);
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + since), "2026-01-12T09:31:07.123Z");
        assert_eq!(seconds(Duration::from_micros(2_345_678)).to_string(), "2.346");
    }
}
