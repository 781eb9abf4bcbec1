//! Check that a request that does more than read does not come from a web page of another origin.
//!
//! A browser sends such a request of any page and only withholds the answer from it (cross-site
//! request forgery).

/// Headers with which a browser says which web page sent a request. Other clients send none of
/// them.
#[derive(Debug, Clone, Copy)]
pub struct PageHeaders<'a, Origins> {
    /// `Sec-Fetch-Site`: relation of the page to the address of the request (Fetch Metadata).
    /// Browsers send it over TLS and to loopback addresses, and no page can set it.
    pub fetch_site: Option<&'a [u8]>,
    /// Values of `Origin`.
    pub origins: Origins,
    /// Host and port that the request names. `None` if no page has the origin of this address.
    pub host: Option<&'a str>,
}

/// Error: a web page of another origin sent the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherOriginError<'a> {
    /// Origin of the page, which is `null` for some pages. `None` if the browser does not say.
    pub origin: Option<&'a [u8]>,
}

impl<'a, Origins: IntoIterator<Item = &'a [u8]>> PageHeaders<'a, Origins> {
    /// Accepts requests of programs, of the user, of pages of the same origin, and of pages whose
    /// origin is listed.
    ///
    /// # Errors
    /// [`OtherOriginError`] for all other requests.
    pub fn check(self, is_listed: impl Fn(&[u8]) -> bool) -> Result<(), OtherOriginError<'a>> {
        let Self { fetch_site, origins, host } = self;
        let mut origins = origins.into_iter().peekable();
        let is_allowed = |origin: &[u8]| match fetch_site {
            // the browser compared the origins, with the scheme
            Some(_) => is_listed(origin),
            None => is_listed(origin) || is_origin_of(origin, host),
        };
        match fetch_site {
            // a proxy may have changed the host, so `Origin` says less
            Some(b"same-origin" | b"none") => Ok(()),
            Some(_) if origins.peek().is_none() => Err(OtherOriginError { origin: None }),
            Some(_) | None => {
                origins.find(|origin| !is_allowed(origin)).map_or(Ok(()), |origin| Err(OtherOriginError { origin: Some(origin) }))
            }
        }
    }
}

/// Returns whether an origin has this host and port. The scheme is not compared, because a proxy
/// may have ended TLS.
fn is_origin_of(origin: &[u8], host: Option<&str>) -> bool {
    let authority = std::str::from_utf8(origin).ok().and_then(|origin| Some(origin.split_once("://")?.1));
    authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_same_and_of_listed_origins_are_accepted() {
        let check = |fetch_site: Option<&'static str>, origin: Option<&'static str>| {
            let (fetch_site, origins) = (fetch_site.map(str::as_bytes), origin.map(str::as_bytes));
            PageHeaders { fetch_site, origins, host: Some("own:9870") }.check(|origin| origin == b"https://listed")
        };
        for (fetch_site, origin) in [
            (None, None),
            (None, Some("http://own:9870")),
            (None, Some("https://OWN:9870")),
            (None, Some("https://listed")),
            // behind a proxy that changes the host
            (Some("same-origin"), Some("https://meshkeep.example")),
            (Some("none"), None),
            (Some("cross-site"), Some("https://listed")),
        ] {
            assert_eq!(check(fetch_site, origin), Ok(()), "{fetch_site:?} {origin:?}");
        }
        for (fetch_site, origin) in [
            (None, Some("https://evil.example")),
            (None, Some("http://own")),
            (None, Some("null")),
            (None, Some("")),
            (Some("cross-site"), None),
            (Some("cross-site"), Some("null")),
            (Some("same-site"), Some("http://own:9870")),
            (Some("same-site"), None),
            (Some("anything"), None),
        ] {
            let expected = Err(OtherOriginError { origin: origin.map(str::as_bytes) });
            assert_eq!(check(fetch_site, origin), expected, "{fetch_site:?} {origin:?}");
        }
    }
}
