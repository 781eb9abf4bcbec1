//! Search for a part of a name, a pod, a label or an address.
//!
//! A search tests every key of a kind, and the objects of those rows whose texts may contain the
//! text: no index has parts of names.

use std::net::IpAddr;

use crate::model::{EntryKey, Kind, Object};
use crate::view::{FieldTest, RowField, TextTest};

/// Number of groups of an IPv6 address, and of hexadecimal digits in each.
const IPV6_GROUPS: usize = 8;
const IPV6_GROUP_DIGITS: usize = 4;

/// Text that an object must contain, in upper or lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SearchText {
    text: String,
    /// True if an address can begin with the text.
    begins_address: bool,
}

impl SearchText {
    /// Creates a search for a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let begins_address = begins_ipv4(&text) || begins_ipv6(&text);
        Self { text, begins_address }
    }

    /// Returns whether a name or another text contains the text.
    #[must_use]
    pub fn is_in(&self, whole: &str) -> bool {
        let (whole, part) = (whole.as_bytes(), self.text.as_bytes());
        part.is_empty() || whole.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
    }

    /// Returns whether `before` and `after`, joined by `separator`, contain the text.
    fn is_in_joined(&self, before: &str, separator: char, after: &str) -> bool {
        // joined only if the text can cover the separator, because joining takes longer than the
        // search
        self.is_in(before) || self.is_in(after) || (self.text.contains(separator) && self.is_in(&format!("{before}{separator}{after}")))
    }

    /// Returns whether the text of an address or prefix begins with the text.
    fn begins(&self, address: impl ToString) -> bool {
        self.begins_address && address.to_string().starts_with(&self.text)
    }

    /// Returns whether an address can begin with the text.
    fn begins_one_of(&self, mut addresses: impl Iterator<Item = IpAddr>) -> bool {
        self.begins_address && addresses.any(|address| self.begins(address))
    }

    /// Returns whether a label, with its value after an equals sign, contains the text.
    #[must_use]
    pub fn is_in_label(&self, key: &str, value: &str) -> bool {
        self.is_in_joined(key, '=', value)
    }

    /// Returns whether the name in a key contains the text. If the text has a slash, the name
    /// begins with the cluster.
    fn is_in_name(&self, key: &EntryKey) -> bool {
        if self.text.contains('/') { self.is_in(&format!("{}/{}", key.cluster, key.name)) } else { self.is_in(&key.name) }
    }

    /// Returns tests that every packed row with a matching object of a kind passes.
    pub(super) fn row_tests(&self, kind: Kind) -> Vec<FieldTest> {
        let (fields, separators, added) = match kind {
            Kind::Ip => (vec![RowField::Namespace, RowField::Pod], &['/'][..], ""),
            // a label without a source gets one of these
            Kind::Identity => (vec![RowField::AnyLabel], &[':', '=', ';'][..], "unspec reserved"),
            _ => return Vec::new(),
        };
        let is_number = kind == Kind::Identity && self.text.bytes().all(|byte| byte.is_ascii_digit());
        if self.begins_address || is_number || self.text.contains(char::REPLACEMENT_CHARACTER) {
            return Vec::new();
        }
        // one text contains each part, although the object may join them with other separators
        let parts = self.text.split(separators).filter(|part| !part.is_empty() && !added.contains(*part));
        parts.map(|part| FieldTest { fields: fields.clone(), test: TextTest::Contains(part.to_owned()) }).collect()
    }

    /// Returns false if the key excludes every object.
    pub(super) fn may_match(&self, key: &EntryKey) -> bool {
        match key.kind {
            Kind::Node | Kind::Service => self.begins_address || self.is_in_name(key),
            kind => !kind.is_namespaced() || self.is_in_name(key),
        }
    }

    /// Returns whether an object contains the text.
    pub(super) fn matches(&self, key: &EntryKey, object: &Object) -> bool {
        match object {
            Object::Node(node) => self.is_in_name(key) || self.begins_one_of(node.addresses.iter().map(|address| address.ip)),
            Object::Service(service) => self.is_in_name(key) || self.begins_one_of(service.frontends.iter().map(|frontend| frontend.ip)),
            Object::ServiceExport(_) | Object::EndpointSlice(_) => self.is_in_name(key),
            Object::Identity(identity) => {
                identity.id.to_string().starts_with(&self.text) || identity.labels.iter().any(|(key, value)| self.is_in_label(key, value))
            }
            Object::Ip(entry) => self.begins(entry.prefix.net) || self.is_in_joined(&entry.namespace, '/', &entry.pod_name),
            Object::Cluster(_) | Object::Finding(_) => false,
        }
    }
}

/// Returns whether an IPv4 address or prefix can begin with a text. It must have a dot: a number
/// alone is more often a part of a name.
fn begins_ipv4(text: &str) -> bool {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let groups: Vec<&str> = address.split('.').collect();
    let (last, complete) = groups.split_last().unwrap_or((&"", &[]));
    let is_group = |group: &&str| group.len() <= 3 && group.parse::<u8>().is_ok();
    let is_whole = complete.len() == 3 && is_group(last);
    (1..=3).contains(&complete.len())
        && complete.iter().all(is_group)
        && (last.is_empty() || is_group(last))
        && length.is_none_or(|length| is_whole && length.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Returns whether an IPv6 address or prefix can begin with a text, which must have a colon.
fn begins_ipv6(text: &str) -> bool {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let groups: Vec<&str> = address.split(':').collect();
    let is_group = |group: &&str| group.len() <= IPV6_GROUP_DIGITS && group.bytes().all(|digit| digit.is_ascii_hexdigit());
    (2..=IPV6_GROUPS + 1).contains(&groups.len())
        && groups.iter().all(is_group)
        && address.matches("::").count() <= 1
        && !address.contains(":::")
        && length.is_none_or(|length| length.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_typed_addresses_are_recognised() {
        for text in
            ["10.", "10.1", "10.1.2.", "10.1.2.40", "10.1.2.0/", "10.1.2.0/24", "fd00:", "FD00:10:1", "2001:db8::1", "::", "fd00::/8"]
        {
            assert!(SearchText::new(text).begins_address, "{text}");
        }
        for text in
            ["", "10", "10.1.2.3.", "256.1", "10..1", ".10", "10.1/8", "cart", "k8s:app", "fd00", "12345:", ":::", "1::2::3", "v1.2"]
        {
            assert!(!SearchText::new(text).begins_address, "{text}");
        }
    }

    #[test]
    fn an_address_is_found_by_its_beginning_alone() {
        assert_eq!(["172.18.", "72.18.", "172"].map(|text| SearchText::new(text).begins("172.18.2.1")), [true, false, false]);
    }

    #[test]
    fn a_text_is_found_in_any_case_and_across_separators() {
        for text in ["cart", "CART", "shop/cart", "p/c", "shop", "paris/shop/cart"] {
            let key = EntryKey::new(Kind::Service, crate::model::ClusterName::parse("paris").unwrap(), "shop/Cart");
            assert!(SearchText::new(text).may_match(&key), "{text}");
        }
        let is_in_label = |text: &str| SearchText::new(text).is_in_label("k8s:app", "cart");
        assert_eq!(["app", "APP=ca", "k8s:app=cart", "cart=", "paris"].map(is_in_label), [true, true, true, false, false]);
    }
}
