//! Parsers for the values of settings: intervals, sizes and kvstore options.

use std::time::Duration;

use crate::model::parse_duration;

/// Parses an interval: a duration above zero.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.is_zero() { Err("must be longer than zero".to_owned()) } else { Ok(duration) }
}

/// Parses `1073741824`, `200MiB` or `1GiB`.
///
/// # Errors
/// Returns a message that names the valid forms.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let bytes = unit.zip(digits.parse::<u64>().ok()).and_then(|(unit, number)| number.checked_mul(unit)).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "must be a number of bytes above zero, such as 200MiB, 1GiB or 1073741824".to_owned())
}

/// Parses an origin exactly as browsers send it in `Origin` (RFC 6454 §6.2), so that it can be
/// compared as text.
///
/// # Errors
/// Returns a message with the valid form.
pub(super) fn parse_origin(text: &str) -> Result<String, String> {
    let (authority, usual_port) = match text.split_once("://") {
        Some(("https", authority)) => (authority, ":443"),
        Some(("http", authority)) => (authority, ":80"),
        _ => ("", ""),
    };
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
    if authority.is_empty() || !authority.chars().all(fits) || authority.ends_with(usual_port) {
        return Err("must be http:// or https:// with a host in lower case and any unusual port, such as https://portal.example".to_owned());
    }
    Ok(text.to_owned())
}

/// One `--kvstore-opt`, with Cilium's name for it (`pkg/kvstore/etcd.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvstoreOption {
    /// `etcd.qps`: maximum lists and watch creations per second.
    Qps(u32),
    /// `etcd.bootstrapQps`: maximum lists and watch creations per second until the cluster is in
    /// sync.
    BootstrapQps(u32),
    /// `etcd.maxInflight`: maximum concurrent requests.
    MaxInflight(u32),
    /// `etcd.limit`: maximum keys per page; 0 is no limit.
    Limit(u32),
    /// `etcd.keepaliveHeartbeat`: interval of keepalives on an idle connection.
    KeepaliveHeartbeat(Duration),
    /// `etcd.keepaliveTimeout`: maximum time for the answer to a keepalive.
    KeepaliveTimeout(Duration),
}

/// All kvstore options, with defaults for those that are not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvstoreOptions {
    /// Maximum lists and watch creations per second, for each remote cluster.
    pub qps: u32,
    /// Maximum lists and watch creations per second until the cluster is in sync. `None` is the
    /// value of `qps`.
    pub bootstrap_qps: Option<u32>,
    /// Maximum concurrent requests per remote cluster. `None` is the value of `qps`.
    pub max_inflight: Option<u32>,
    /// Maximum keys per page; 0 is no limit.
    pub page_limit: u32,
    /// Interval of keepalives on an idle connection.
    pub keepalive_heartbeat: Duration,
    /// Maximum time for the answer to a keepalive.
    pub keepalive_timeout: Duration,
}

impl Default for KvstoreOptions {
    /// Returns Cilium's defaults (`pkg/kvstore/etcd.go`, `pkg/defaults/defaults.go`).
    fn default() -> Self {
        Self {
            qps: 20,
            bootstrap_qps: None,
            max_inflight: None,
            page_limit: 256,
            keepalive_heartbeat: Duration::from_secs(15),
            keepalive_timeout: Duration::from_secs(25),
        }
    }
}

impl KvstoreOptions {
    /// Returns the name, the value and a description of each option.
    pub(super) fn table(&self) -> [(&'static str, String, &'static str); 6] {
        let bootstrap_qps = self.bootstrap_qps.unwrap_or(self.qps);
        let to_text = |duration: Duration| format!("{duration:?}");
        [
            ("etcd.qps", self.qps.to_string(), "Lists and watches started per second, for each remote cluster"),
            ("etcd.bootstrapQps", bootstrap_qps.to_string(), "Lists and watches started per second until the remote cluster is in sync"),
            ("etcd.maxInflight", self.max_inflight.unwrap_or(self.qps).to_string(), "Concurrent requests to one remote cluster"),
            ("etcd.limit", self.page_limit.to_string(), "Keys per page of a list; 0 means no limit"),
            ("etcd.keepaliveHeartbeat", to_text(self.keepalive_heartbeat), "Interval of keepalive pings on an idle connection"),
            ("etcd.keepaliveTimeout", to_text(self.keepalive_timeout), "Maximum time for the answer to a keepalive ping"),
        ]
    }

    /// Returns the defaults overridden by these options. The last option of a name wins.
    #[must_use]
    pub fn with(options: &[KvstoreOption]) -> Self {
        let mut merged = Self::default();
        for option in options {
            match *option {
                KvstoreOption::Qps(qps) => merged.qps = qps,
                KvstoreOption::BootstrapQps(qps) => merged.bootstrap_qps = Some(qps),
                KvstoreOption::MaxInflight(count) => merged.max_inflight = Some(count),
                KvstoreOption::Limit(count) => merged.page_limit = count,
                KvstoreOption::KeepaliveHeartbeat(interval) => merged.keepalive_heartbeat = interval,
                KvstoreOption::KeepaliveTimeout(timeout) => merged.keepalive_timeout = timeout,
            }
        }
        merged
    }
}

impl KvstoreOption {
    /// Returns the name as on the command line.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Qps(_) => "etcd.qps",
            Self::BootstrapQps(_) => "etcd.bootstrapQps",
            Self::MaxInflight(_) => "etcd.maxInflight",
            Self::Limit(_) => "etcd.limit",
            Self::KeepaliveHeartbeat(_) => "etcd.keepaliveHeartbeat",
            Self::KeepaliveTimeout(_) => "etcd.keepaliveTimeout",
        }
    }

    /// Parses `name=value`.
    ///
    /// # Errors
    /// Returns a message that names the option, or the known options if it is none of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("must be KEY=VALUE, such as etcd.qps=20")?;
        let number = || value.parse::<u32>().map_err(|_| format!("{name} must be a whole number"));
        let rate = || number().and_then(|rate| if rate == 0 { Err(format!("{name} must be at least 1")) } else { Ok(rate) });
        let interval = || parse_interval(value).map_err(|reason| format!("{name} {reason}"));
        match name {
            "etcd.qps" => rate().map(Self::Qps),
            "etcd.bootstrapQps" => rate().map(Self::BootstrapQps),
            "etcd.maxInflight" => rate().map(Self::MaxInflight),
            "etcd.limit" => number().map(Self::Limit),
            "etcd.keepaliveHeartbeat" => interval().map(Self::KeepaliveHeartbeat),
            "etcd.keepaliveTimeout" => interval().map(Self::KeepaliveTimeout),
            _ => Err(unknown_option(name)),
        }
    }
}

/// Describes an unknown option. Repeats the name only if it looks like one, because anything else
/// may be a misplaced secret.
fn unknown_option(name: &str) -> String {
    const KNOWN: &str =
        "the options are etcd.qps, etcd.bootstrapQps, etcd.maxInflight, etcd.limit, etcd.keepaliveHeartbeat and etcd.keepaliveTimeout";
    let looks_like_an_option = name.strip_prefix("etcd.").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphabetic()));
    match name {
        "etcd.address" | "etcd.config" => {
            format!(
                "{name} only applies to an etcd that is written to: remote clusters have their files in --clustermesh-config, the own cluster has --local-etcd"
            )
        }
        _ if looks_like_an_option => format!("there is no option {name}; {KNOWN}"),
        _ => format!("there is no such option; {KNOWN}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_longer_than_zero() {
        assert_eq!(parse_interval("1d12h"), Ok(Duration::from_hours(36)));
        assert!(parse_interval("0s").is_err());
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("1", 1), ("10B", 10), ("64KiB", 65_536), ("200MiB", 209_715_200), ("1GiB", 1_073_741_824)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "MiB", "1MB", "1.5GiB", "-1", "1 GiB", "99999999999GiB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn kvstore_options_override_ciliums_defaults() {
        let parsed: Result<Vec<_>, _> =
            ["etcd.qps=5", "etcd.qps=7", "etcd.limit=0", "etcd.keepaliveTimeout=3s"].map(KvstoreOption::parse).into_iter().collect();
        let expected = KvstoreOptions { qps: 7, page_limit: 0, keepalive_timeout: Duration::from_secs(3), ..KvstoreOptions::default() };
        assert_eq!(KvstoreOptions::with(&parsed.unwrap()), expected);
        for (bad, named) in [
            ("etcd.qps", "KEY=VALUE"),
            ("etcd.qps=0", "etcd.qps"),
            ("etcd.limit=x", "etcd.limit"),
            ("etcd.adress=y", "there is no option etcd.adress; the options are etcd.qps"),
            ("s3cret=y", "there is no such option"),
            ("etcd.config=y", "--local-etcd"),
        ] {
            let reason = KvstoreOption::parse(bad).unwrap_err();
            assert!(reason.contains(named), "{bad}: {reason}");
        }
    }
}
