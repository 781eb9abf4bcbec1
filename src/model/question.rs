//! Questions that are answered from few records, and so before a store is read whole.

use std::net::IpAddr;

use ipnet::IpNet;

use super::EntryKey;

/// What is asked of the mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// The ip entries of every prefix that covers an address, derived ones included.
    Covering(IpAddr),
    /// The ip entries of exactly this network, hosts and CIDRs.
    Network(IpNet),
    /// The identities of a number.
    Identity(u32),
    /// The nodes that have an address.
    NodeAt(IpAddr),
    /// The record of a key.
    Key(EntryKey),
}
