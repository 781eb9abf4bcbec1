//! A URL that holds a secret: a user and password, or a path that only its owner knows, as those of chat services are.

use std::fmt;

/// What stands for what is left out.
const LEFT_OUT: &str = "REDACTED";

/// A URL of `http` or `https`, of which nothing but scheme, host and port is ever shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Any text: whether it can be used is asked of it, for an error that repeats it would tell.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// All of it, for connecting.
    #[must_use]
    pub fn whole(&self) -> &str {
        &self.0
    }

    /// Whether it begins as it must, and names a host.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.place().is_some_and(|(_, host)| !host.is_empty())
    }

    /// As anybody may read it: `https://hooks.example:8443/REDACTED`.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.place() {
            Some((scheme, host)) => format!("{scheme}://{host}/{LEFT_OUT}"),
            None => LEFT_OUT.to_owned(),
        }
    }

    /// The scheme, and the host with its port. What stands before the last `@` may be a password that has a slash in it.
    fn place(&self) -> Option<(&str, &str)> {
        let (scheme, rest) = self.0.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        let host = rest.split(['/', '?', '#']).next()?;
        let is_host = host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c));
        is_host.then_some((scheme, host))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scheme_host_and_port_are_shown() {
        for (url, shown) in [
            ("https://hooks.example/services/T0/hunter2", "https://hooks.example/REDACTED"),
            ("http://bob:hunter2@10.0.0.1:8080", "http://10.0.0.1:8080/REDACTED"),
            ("http://bob:hunter2/x@[::1]:80/y?k=hunter2#hunter2", "http://[::1]:80/REDACTED"),
            ("https://hooks.example?hunter2", "https://hooks.example/REDACTED"),
            ("https://hooks.example/x@hunter2=", "REDACTED"),
            ("hunter2", "REDACTED"),
            ("ftp://hunter2", "REDACTED"),
        ] {
            let url = SecretUrl::new(url);
            assert_eq!((url.shown(), format!("{url:?}")), (shown.to_owned(), shown.to_owned()));
        }
        let usable = ["https://a", "http://a:1/b", "https://", "a", "ftp://a", "https:///a"].map(|url| SecretUrl::new(url).is_usable());
        assert_eq!(usable, [true, true, false, false, false, false]);
    }
}
