//! Queries that need only a few records, so that they can be answered while the store is still
//! loading.

use std::net::IpAddr;

use ipnet::IpNet;

use super::EntryKey;

/// A query for a few records of the mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordQuery {
    /// The ip entries of every prefix that covers an address, including derived entries.
    Covering(IpAddr),
    /// The ip entries of exactly this network: hosts and CIDRs.
    Network(IpNet),
    /// The identities with a number, one per cluster.
    Identity(u32),
    /// The nodes with this address.
    NodeAt(IpAddr),
    /// The record of a key.
    Key(EntryKey),
}
