//! Summary of a chunk of entries, which shows whether a lookup must read the chunk.
//!
//! A "no" is certain. An element that is not in the chunk gets a "yes" about once in 300 times.
//! `manifest` stores the summaries.
//!
//! Bytes: flags (1 rows with unknown indexed fields, 2 prefixes, 4 identities, 8 addresses of
//! nodes) · `varint` count · that many `varint` shapes of prefixes (length × 4, + 2 for hosts, + 1
//! for IPv6), ascending · `varint` count · that many `text` clusters, ascending · filter.
//!
//! The filter is a Bloom filter with as many bits as its bytes have. An element sets the bits `(low
//! + i × high) mod bits` for i from 0 to 7, where low and high are the halves of its hash, and high
//! is made odd. The hash begins with the tag of the element (1 prefix, 2 identity, 3 address of a
//! node) and adds numbers with `mix(hash xor number)`: for a prefix its shape and the two halves of
//! its address, low first; for an identity its number; for an address 0 or 1 for IPv6 and its two
//! halves. `mix` is splitmix64.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ::bytes::Bytes;
use ipnet::IpNet;

use crate::model::{ClusterName, ObjectPrefix, RecordQuery};
use crate::pack::{Chunk, IndexedFields};
use crate::store::encoding::checksum::{ByteReader, DecodeError, put_text, put_varint};

/// Bits of the filter for each element. With [`PROBES`], one in about 300 other elements passes:
/// with a million keys, a lookup reads about three chunks in vain.
const BITS_PER_ELEMENT: usize = 12;

/// Number of bits that an element sets. The best number for [`BITS_PER_ELEMENT`] is `12 × ln 2`.
const PROBES: u64 = 8;

const UNKNOWN: u8 = 1;
const PREFIXES: u8 = 1 << 1;
const IDENTITIES: u8 = 1 << 2;
const NODES: u8 = 1 << 3;

/// An encoded summary. Summaries that were read together share one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct ChunkSummary(Bytes);

/// A decoded summary.
struct SummaryFields<'a> {
    flags: u8,
    shapes: Vec<u64>,
    clusters: Vec<&'a str>,
    filter: &'a [u8],
}

impl ChunkSummary {
    /// Returns the summary of a range without entries.
    pub(in crate::store) fn empty() -> Self {
        Self::from_chunks(&[])
    }

    /// Summarizes the packed chunks of one body.
    pub(in crate::store) fn from_chunks(chunks: &[Chunk]) -> Self {
        let (mut flags, mut shapes, mut clusters, mut hashes) = (0, BTreeSet::new(), BTreeSet::new(), Vec::new());
        for chunk in chunks {
            clusters.extend(chunk.scopes().map(|(_, cluster)| cluster.as_str()));
            for row in 0..chunk.len() {
                match chunk.indexed_fields(row) {
                    IndexedFields::Unknown => flags |= UNKNOWN,
                    IndexedFields::Nothing | IndexedFields::Service(_) => {}
                    IndexedFields::Ip { prefix, .. } => {
                        flags |= PREFIXES;
                        shapes.insert(prefix_shape(prefix));
                        hashes.push(prefix_hash(prefix));
                    }
                    IndexedFields::Identity(id) => {
                        flags |= IDENTITIES;
                        hashes.push(identity_hash(id));
                    }
                    IndexedFields::Node { addresses } => {
                        flags |= NODES;
                        hashes.extend(addresses.into_iter().map(node_hash));
                    }
                }
            }
        }
        Self::encode(flags, &shapes, &clusters, &hashes)
    }

    /// Returns the summary of entries that cannot be read, which matches everything.
    pub(in crate::store) fn unknown() -> Self {
        Self::encode(UNKNOWN, &BTreeSet::new(), &BTreeSet::new(), &[])
    }

    fn encode(flags: u8, shapes: &BTreeSet<u64>, clusters: &BTreeSet<&str>, hashes: &[u64]) -> Self {
        let mut out = Vec::new();
        out.push(flags);
        put_varint(&mut out, shapes.len() as u64);
        shapes.iter().for_each(|shape| put_varint(&mut out, *shape));
        put_varint(&mut out, clusters.len() as u64);
        clusters.iter().for_each(|cluster| put_text(&mut out, cluster.as_bytes()));
        let mut filter = vec![0_u8; (hashes.len() * BITS_PER_ELEMENT).div_ceil(8)];
        let length = filter.len();
        for bit in hashes.iter().flat_map(|hash| bits(*hash, length)) {
            filter[bit / 8] |= 1 << (bit % 8);
        }
        out.extend_from_slice(&filter);
        Self(out.into())
    }

    /// Checks and returns a stored summary.
    pub(in crate::store) fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        decode_fields(&bytes)?;
        Ok(Self(bytes))
    }

    /// Returns the encoded summary.
    pub(in crate::store) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the clusters that have entries in the chunk.
    pub(in crate::store) fn clusters(&self) -> Vec<ClusterName> {
        let clusters = decode_fields(&self.0).map(|fields| fields.clusters).unwrap_or_default();
        clusters.into_iter().filter_map(|text| ClusterName::parse(text).ok()).collect()
    }

    /// Returns whether the chunk may have a match for one of the queries. Always false for
    /// [`RecordQuery::Key`], because the chunk's range shows whether it may contain the key.
    pub(in crate::store) fn may_match(&self, queries: &[RecordQuery]) -> bool {
        decode_fields(&self.0).map_or(true, |fields| queries.iter().any(|query| fields.may_match(query)))
    }
}

impl SummaryFields<'_> {
    fn may_match(&self, query: &RecordQuery) -> bool {
        let is_set = |bit: usize| self.filter.get(bit / 8).is_some_and(|byte| byte & 1 << (bit % 8) != 0);
        let has = |flag: u8, hash: u64| self.flags & flag != 0 && bits(hash, self.filter.len()).all(is_set);
        let has_prefix = |prefix| has(PREFIXES, prefix_hash(prefix));
        match query {
            RecordQuery::Key(_) => false,
            _ if self.flags & UNKNOWN != 0 => true,
            RecordQuery::Covering(ip) => self.shapes.iter().any(|shape| covering_prefix(*ip, *shape).is_some_and(has_prefix)),
            RecordQuery::Network(net) => [true, false].into_iter().any(|host| has_prefix(ObjectPrefix { net: *net, host })),
            RecordQuery::Identity(id) => has(IDENTITIES, identity_hash(*id)),
            RecordQuery::NodeAt(ip) => has(NODES, node_hash(*ip)),
        }
    }
}

fn decode_fields(bytes: &[u8]) -> Result<SummaryFields<'_>, DecodeError> {
    let mut reader = ByteReader::new(bytes);
    let flags = reader.flags(UNKNOWN | PREFIXES | IDENTITIES | NODES)?;
    let shapes = (0..reader.varint()?).map(|_| reader.varint()).collect::<Result<_, _>>()?;
    let clusters = (0..reader.varint()?).map(|_| reader.text("cluster")).collect::<Result<_, _>>()?;
    Ok(SummaryFields { flags, shapes, clusters, filter: reader.rest() })
}

/// Returns the bits of an element in a filter of this length. An empty filter has none.
fn bits(hash: u64, filter_bytes: usize) -> impl Iterator<Item = usize> {
    let (low, high) = (hash & 0xffff_ffff, hash >> 32 | 1);
    (0..PROBES).filter_map(move |probe| usize::try_from((low + probe * high).checked_rem(filter_bytes as u64 * 8)?).ok())
}

/// Combines the length, the host flag and the address family of a prefix into one number.
fn prefix_shape(prefix: ObjectPrefix) -> u64 {
    u64::from(prefix.net.prefix_len()) << 2 | u64::from(prefix.host) << 1 | u64::from(prefix.net.addr().is_ipv6())
}

/// Returns the prefix with this shape that covers an address. `None` for the other address family.
fn covering_prefix(ip: IpAddr, shape: u64) -> Option<ObjectPrefix> {
    if (shape & 1 == 1) != ip.is_ipv6() {
        return None;
    }
    let net = IpNet::new(ip, u8::try_from(shape >> 2).ok()?).ok()?.trunc();
    Some(ObjectPrefix { net, host: shape & 2 != 0 })
}

fn prefix_hash(prefix: ObjectPrefix) -> u64 {
    address_hash(1, prefix_shape(prefix), prefix.net.addr())
}

fn identity_hash(id: u32) -> u64 {
    hash(2, &[u64::from(id)])
}

fn node_hash(ip: IpAddr) -> u64 {
    address_hash(3, u64::from(ip.is_ipv6()), ip)
}

fn address_hash(tag: u64, number: u64, ip: IpAddr) -> u64 {
    let bits = match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
    hash(tag, &[number, half(bits), half(bits >> 64)])
}

fn hash(tag: u64, numbers: &[u64]) -> u64 {
    numbers.iter().fold(mix(tag), |hash, number| mix(hash ^ number))
}

/// The splitmix64 function.
fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
