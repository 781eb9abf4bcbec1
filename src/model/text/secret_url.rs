//! URLs that contain a secret: a user and password, or a secret path such as those of chat
//! webhooks.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// Replacement for the parts that are not shown.
const REDACTED: &str = "REDACTED";

/// `http` or `https` URL of which only scheme, host and port are ever shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Wraps any text. [`SecretUrl::is_usable`] checks it separately, because a parse error would
    /// repeat the secret.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// Returns the whole URL, for connecting.
    #[must_use]
    pub fn whole(&self) -> &str {
        &self.0
    }

    /// Returns whether the URL begins with `http://` or `https://` and names a host.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.scheme_and_host().is_some_and(|(_, host)| !host.is_empty())
    }

    /// Returns the URL without its secrets: `https://hooks.example:8443/REDACTED`.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.scheme_and_host() {
            Some((scheme, host)) => format!("{scheme}://{host}/{REDACTED}"),
            None => REDACTED.to_owned(),
        }
    }

    /// Returns the scheme, and the host with its port. The text before the last `@` may be a
    /// password that contains a slash.
    fn scheme_and_host(&self) -> Option<(&str, &str)> {
        let (scheme, rest) = self.0.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        let host = rest.split(['/', '?', '#']).next()?;
        is_host_and_port(host).then_some((scheme, host))
    }
}

/// Returns whether a text can be a host with or without a port. A non-numeric text after the colon
/// may be a password.
fn is_host_and_port(text: &str) -> bool {
    let is_port = |port: &str| port.ends_with(']') || port.bytes().all(|byte| byte.is_ascii_digit());
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c)) && text.rsplit_once(':').is_none_or(|(_, port)| is_port(port))
}

/// Removes the secrets from the URLs in a text: user and password, and everything after a `?`.
#[must_use]
pub fn redact_url_secrets(text: &str) -> Cow<'_, str> {
    replace_urls(text, |after_scheme| {
        let after_scheme: Cow<'_, str> =
            after_scheme.rsplit_once('@').map_or(after_scheme.into(), |(_, host)| format!("{REDACTED}@{host}").into());
        match after_scheme.split_once('?') {
            Some((before, _)) => format!("{before}?{REDACTED}").into(),
            None => after_scheme,
        }
    })
}

/// Reduces each URL in a text to scheme, host and port. Meant for messages that repeat user input,
/// where any other part may be a secret.
#[must_use]
pub fn redact_urls(text: &str) -> Cow<'_, str> {
    replace_urls(text, |after_scheme| match SecretUrl::new(&format!("https://{after_scheme}")).scheme_and_host() {
        _ if is_host_and_port(after_scheme) => after_scheme.into(),
        Some((_, host)) => format!("{host}/{REDACTED}").into(),
        None => REDACTED.into(),
    })
}

/// Returns a path as messages may show it: if the user gave a URL instead of a path, it may contain
/// a secret.
#[must_use]
pub fn redacted_path(path: &Path) -> String {
    redact_urls(&path.to_string_lossy()).into_owned()
}

/// Replaces the text after the `://` of each URL. A URL ends at a blank, a quotation mark or a
/// bracket.
fn replace_urls(text: &str, replace: impl Fn(&str) -> Cow<'_, str>) -> Cow<'_, str> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after_scheme)) = rest.split_once("://") {
        let end = after_scheme.find(|c: char| c.is_whitespace() || "\"'`<>()".contains(c)).unwrap_or(after_scheme.len());
        let (url, after) = after_scheme.split_at(end);
        // punctuation at the end belongs to the sentence
        let url_end = url.trim_end_matches([':', ',', ';', '.']).len();
        let (url, mark) = url.split_at(url_end);
        // the path of a unix socket is no secret
        let url = if before.ends_with("unix") { url.into() } else { replace(url) };
        out.extend([before, "://", &url, mark]);
        rest = after;
    }
    if out.is_empty() { text.into() } else { (out + rest).into() }
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
            ("https://bob:hunter2", "REDACTED"),
            ("hunter2", "REDACTED"),
            ("ftp://hunter2", "REDACTED"),
        ] {
            let url = SecretUrl::new(url);
            assert_eq!((url.shown(), format!("{url:?}")), (shown.to_owned(), shown.to_owned()));
        }
        let usable = ["https://a", "http://a:1/b", "https://", "a", "ftp://a", "https:///a"].map(|url| SecretUrl::new(url).is_usable());
        assert_eq!(usable, [true, true, false, false, false, false]);
    }

    #[test]
    fn errors_show_urls_without_their_secrets() {
        for (text, shown) in [
            ("no meshkeep at http://10.0.0.1:9870 (refused)", "no meshkeep at http://10.0.0.1:9870 (refused)"),
            ("http://bob:hunter2@a:1: refused", "http://REDACTED@a:1: refused"),
            ("http://bob:p/hunter2@a:1, https://b/c?k=hunter2 and more", "http://REDACTED@a:1, https://b/c?REDACTED and more"),
            ("unix:///run/m@keep.sock", "unix:///run/m@keep.sock"),
            ("plain", "plain"),
        ] {
            assert_eq!(redact_url_secrets(text), shown);
        }
    }

    #[test]
    fn messages_show_only_the_host_of_a_url() {
        for (text, shown) in [
            ("unexpected argument 'https://hooks.example/T0/hunter2' found", "unexpected argument 'https://hooks.example/REDACTED' found"),
            ("http://bob:hunter2@a:1 is none", "http://a:1/REDACTED is none"),
            ("'etcd.adress=https://a:1'", "'etcd.adress=https://a:1'"),
            ("https://a/x@hunter2=", "https://REDACTED"),
        ] {
            assert_eq!(redact_urls(text), shown);
        }
        assert_eq!(redacted_path(Path::new("/etc/a b.yaml")), "/etc/a b.yaml");
        assert_eq!(redacted_path(Path::new("https://bob:hunter2@etcd:2379")), "https://etcd:2379/REDACTED");
    }
}
