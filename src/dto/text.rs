//! How times, durations, addresses and prefixes are written.

use std::fmt::{Display, Write as _};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;

/// How long prefixes of IPv4 are at most.
const PREFIX_LENGTH: usize = 18;

/// A time as RFC 3339 in UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// A duration in seconds, to the millisecond.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round() / 1_000.0
}

/// What something is written as, in room for `length` bytes from the start: a text that grows piece by piece is moved several times.
pub(crate) fn text_of(shown: &impl Display, length: usize) -> String {
    let mut text = String::with_capacity(length);
    // only what is written itself can fail, and nothing here does
    let _ = write!(text, "{shown}");
    text
}

/// An address as it is written everywhere. Those of IPv4, of which each event has two, without what formats any number in any width.
pub(crate) fn text_of_ip(ip: IpAddr) -> String {
    let IpAddr::V4(ip) = ip else { return ip.to_string() };
    let mut text = String::with_capacity(PREFIX_LENGTH);
    for (place, octet) in ip.octets().into_iter().enumerate() {
        if place > 0 {
            text.push('.');
        }
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let zeros = digits[..2].iter().take_while(|digit| **digit == 0).count();
        digits[zeros..].iter().for_each(|digit| text.push(char::from(b'0' + digit)));
    }
    text
}

/// A prefix with its length.
pub(crate) fn text_of_net(net: IpNet) -> String {
    let mut text = text_of_ip(net.addr());
    let _ = write!(text, "/{}", net.prefix_len());
    text
}

/// A text, unless it is empty.
pub(crate) fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes_are_written_as_everywhere() {
        for octet in 0..=u8::MAX {
            let ip = IpAddr::from([octet, 0, 255, octet]);
            assert_eq!(text_of_ip(ip), ip.to_string());
        }
        for text in ["10.1.0.0/16", "0.0.0.0/0", "255.255.255.255/32", "fd00:10::/64", "::ffff:10.0.0.1/128"] {
            assert_eq!(text_of_net(text.parse().unwrap()), text);
        }
    }
}
