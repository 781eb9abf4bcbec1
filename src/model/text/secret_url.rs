//! A URL that holds a secret: a user and password, or a path that only its owner knows, as those of chat services are.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

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
        is_host_and_port(host).then_some((scheme, host))
    }
}

/// Whether a text can be a host with or without a port. What stands in a port's place and is no number may be a password.
fn is_host_and_port(text: &str) -> bool {
    let is_port = |port: &str| port.ends_with(']') || port.bytes().all(|byte| byte.is_ascii_digit());
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c)) && text.rsplit_once(':').is_none_or(|(_, port)| is_port(port))
}

/// A text, for instance of an error, without the secrets of the URLs in it: user and password, and what follows a `?`.
#[must_use]
pub fn without_url_secrets(text: &str) -> Cow<'_, str> {
    replace_urls(text, |behind| {
        let behind: Cow<'_, str> = behind.rsplit_once('@').map_or(behind.into(), |(_, host)| format!("{LEFT_OUT}@{host}").into());
        match behind.split_once('?') {
            Some((before, _)) => format!("{before}?{LEFT_OUT}").into(),
            None => behind,
        }
    })
}

/// A text that repeats what somebody typed, in which nothing but scheme, host and port is shown of each URL: any other part may be a secret.
#[must_use]
pub fn with_bare_urls(text: &str) -> Cow<'_, str> {
    replace_urls(text, |behind| match SecretUrl::new(&format!("https://{behind}")).place() {
        _ if is_host_and_port(behind) => behind.into(),
        Some((_, host)) => format!("{host}/{LEFT_OUT}").into(),
        None => LEFT_OUT.into(),
    })
}

/// A path, as an error may name it: a URL in the place of a path may hold a secret.
#[must_use]
pub fn shown_path(path: &Path) -> String {
    with_bare_urls(&path.to_string_lossy()).into_owned()
}

/// Replaces what stands behind the `://` of each URL in a text. A URL ends at a blank, a quotation mark or a bracket.
fn replace_urls(text: &str, replace: impl Fn(&str) -> Cow<'_, str>) -> Cow<'_, str> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once("://") {
        let end = behind.find(|c: char| c.is_whitespace() || "\"'`<>()".contains(c)).unwrap_or(behind.len());
        let (url, after) = behind.split_at(end);
        // of a sentence
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
            assert_eq!(without_url_secrets(text), shown);
        }
    }

    #[test]
    fn what_was_typed_is_repeated_with_the_host_alone() {
        for (text, shown) in [
            ("unexpected argument 'https://hooks.example/T0/hunter2' found", "unexpected argument 'https://hooks.example/REDACTED' found"),
            ("http://bob:hunter2@a:1 is none", "http://a:1/REDACTED is none"),
            ("'etcd.adress=https://a:1'", "'etcd.adress=https://a:1'"),
            ("https://a/x@hunter2=", "https://REDACTED"),
        ] {
            assert_eq!(with_bare_urls(text), shown);
        }
        assert_eq!(shown_path(Path::new("/etc/a b.yaml")), "/etc/a b.yaml");
        assert_eq!(shown_path(Path::new("https://bob:hunter2@etcd:2379")), "https://etcd:2379/REDACTED");
    }
}
