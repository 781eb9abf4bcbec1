//! Conversion of lookups by longest prefix.

use crate::dto::lookup::{LookupAnswer, LookupItem};
use crate::dto::meta::{ItemMeta, SourceAge};
use crate::dto::objects::IpcacheEntry;
use crate::handle::{LookupMatch, Reading};

impl LookupAnswer {
    pub(crate) fn new(ip: std::net::IpAddr, matches: &[LookupMatch], meta: ItemMeta, reading: &Reading) -> Self {
        let mut entries = matches.iter().filter_map(|found| IpcacheEntry::from_match(found, reading));
        Self { ip: ip.to_string(), found: entries.next(), others: entries.collect(), meta }
    }
}

impl LookupItem {
    pub(crate) fn new(ip: &str, matches: &[LookupMatch], meta: Option<SourceAge>, reading: &Reading) -> Self {
        let mut entries = matches.iter().filter_map(|found| IpcacheEntry::from_match(found, reading));
        Self {
            ip: ip.to_owned(),
            found: Some(entries.next()),
            others: entries.collect(),
            meta,
            complete: None,
            candidates: Vec::new(),
            error: None,
        }
    }

    pub(crate) fn failed(ip: &str) -> Self {
        let error = Some("not an IP address: write it like 10.1.2.40 or fd00::1".to_owned());
        Self { ip: ip.to_owned(), found: None, others: Vec::new(), meta: None, complete: None, candidates: Vec::new(), error }
    }
}
