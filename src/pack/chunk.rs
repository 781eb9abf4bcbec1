//! A chunk as it is read: checked once as a whole, then decoded record by record where they stand.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;

use super::bytes::Reader;
use super::column::{Column, Row};
use super::meaning::{Meaning, prefix_of_name, read_addresses};
use super::parts::{Extra, Group, NumberColumns, Template, read_extras, read_groups, read_templates};
use super::{CHECKSUM_LENGTH, FORM, Malformed, RECORDS_MAX, digest, flag};
use crate::model::{ClusterName, EntryKey, Kind, LeaseId, NODE_IP_MARK, ObjectPrefix, Record, Revision, Sequence, SourceStamp};

/// About a thousand records in key order, packed. Cloning copies a pointer.
#[derive(Clone)]
pub struct Chunk(pub(super) Arc<Packed>);

pub(super) struct Packed {
    pub(super) bytes: Arc<[u8]>,
    pub(super) count: usize,
    max_sequence: Sequence,
    pub(super) groups: Box<[Group]>,
    pub(super) names: Column,
    pub(super) numbers: NumberColumns,
    pub(super) addresses: Column,
    pub(super) templates: Box<[Template]>,
    pub(super) verbatim: Column,
    extras: Box<[Extra]>,
    /// The rows in order of last sequence, made on the first use.
    order: OnceLock<Box<[u16]>>,
    /// Numbers of all rows that a reader keeps here, made on the first use ([`Chunk::noted`]).
    noted: OnceLock<Box<[u32]>>,
    /// No value has more bytes.
    pub(super) value_length_max: usize,
}

/// What a record says of its own life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// The sequence when it appeared.
    pub created: Sequence,
    /// The sequence of its last change.
    pub last: Sequence,
    /// How many times it changed since it appeared, starting with 1.
    pub version: u64,
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} records from {}, {} B)", self.len(), self.first_key(), self.stored().len())
    }
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.stored() == other.stored()
    }
}

impl Chunk {
    /// Reads a chunk and checks all of it, so that nothing later can fail.
    ///
    /// # Errors
    /// [`Malformed`] where the bytes are not those of a chunk of this version.
    pub fn from_stored(bytes: impl Into<Arc<[u8]>>) -> Result<Self, Malformed> {
        let bytes = bytes.into();
        let (sealed, checksum) = bytes.split_last_chunk::<CHECKSUM_LENGTH>().ok_or(Malformed::Truncated)?;
        if crc32fast::hash(sealed).to_le_bytes() != *checksum {
            return Err(Malformed::Checksum);
        }
        let packed = Packed::read(&bytes, &mut Reader::body(sealed, FORM)?)?;
        Ok(Self(Arc::new(packed)))
    }

    pub(super) fn packed(&self) -> &Packed {
        &self.0
    }

    /// The bytes to store: below [`super::STORED_LENGTH_MAX`], unless the chunk is [`Chunk::is_oversize`].
    #[must_use]
    pub fn stored(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Whether it is longer than [`super::STORED_LENGTH_MAX`]. Such a chunk has one record; whoever stores it spreads it over several places.
    #[cfg(test)]
    #[must_use]
    pub fn is_oversize(&self) -> bool {
        self.0.bytes.len() >= super::STORED_LENGTH_MAX
    }

    /// How many records it has, at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no chunk is empty")]
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// The lowest key.
    #[must_use]
    pub fn first_key(&self) -> EntryKey {
        self.key(0)
    }

    /// The highest key.
    #[must_use]
    pub fn last_key(&self) -> EntryKey {
        self.key(self.len() - 1)
    }

    /// The highest last sequence of its records.
    #[must_use]
    pub fn max_sequence(&self) -> Sequence {
        self.0.max_sequence
    }

    /// The record of a key: without its object, in generation 0.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn get(&self, key: &EntryKey) -> Option<Record> {
        self.find(key).ok().map(|row| self.record(row))
    }

    /// All records in key order: without their objects, in generation 0.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = Record> + ExactSizeIterator + '_ {
        (0..self.len()).map(|row| self.record(row))
    }

    /// The key of a row. Panics, as all that follow, for a row that is not there.
    #[must_use]
    pub fn key(&self, row: usize) -> EntryKey {
        let packed = &self.0;
        let group = packed.group(row);
        let mut name = Vec::with_capacity(32);
        packed.append_name(row, &mut name);
        EntryKey::new(group.kind, group.cluster.clone(), String::from_utf8_lossy(&name))
    }

    /// The clusters of its rows, each with the rows of one kind.
    pub fn clusters(&self) -> impl Iterator<Item = (Range<usize>, &ClusterName)> {
        self.0.groups.iter().filter(|group| group.start < group.end).map(|group| (group.start..group.end, &group.cluster))
    }

    /// The rows of a kind of a cluster.
    #[must_use]
    pub fn rows_of(&self, kind: Kind, cluster: &ClusterName) -> Range<usize> {
        let found = self.0.groups.iter().find(|group| group.kind == kind && group.cluster == *cluster);
        found.map_or(0..0, |group| group.start..group.end)
    }

    /// Whether the source may have lost the key of any row ([`SourceStamp::held`]). False is certain.
    #[must_use]
    pub fn may_be_held(&self) -> bool {
        (flag::HELD..2 * flag::HELD).any(|flags| self.0.numbers.flags.may_hold(&self.0.bytes, flags))
    }

    /// Appends the key of a row as bytes that sort as keys do.
    pub fn append_key(&self, row: usize, out: &mut Vec<u8>) {
        let group = self.0.group(row);
        out.push(group.kind as u8);
        out.extend_from_slice(group.cluster.as_str().as_bytes());
        out.push(b'/');
        self.0.append_name(row, out);
    }

    /// The kind and the cluster of a row.
    #[must_use]
    pub fn scope(&self, row: usize) -> (Kind, &ClusterName) {
        let group = self.0.group(row);
        (group.kind, &group.cluster)
    }

    /// The address of a row, where it is a usable host entry of IPv4 and its key is that address: most are.
    #[must_use]
    pub fn ipv4_host(&self, row: usize) -> Option<Ipv4Addr> {
        if self.0.is_usable(row) { self.0.ipv4_host(row) } else { None }
    }

    /// What a row is for, where it is a usable entry derived from a node; `node` is then the name of that.
    #[must_use]
    pub fn node_ip(&self, row: usize, node: &mut Vec<u8>) -> Option<ObjectPrefix> {
        if !self.0.is_usable(row) || self.scope(row).0 != Kind::NodeIp {
            return None;
        }
        node.clear();
        self.0.append_name(row, node);
        // that it is written so was checked when it was noted
        let (name, text) = std::str::from_utf8(node).ok()?.rsplit_once(NODE_IP_MARK)?;
        let (length, prefix) = (name.len(), ObjectPrefix::parse(text)?);
        node.truncate(length);
        Some(prefix)
    }

    /// Whether the newest bytes of a row's value are these. Nothing is decoded behind the first difference.
    #[must_use]
    pub fn has_value(&self, row: usize, value: &[u8]) -> bool {
        if self.0.numbers.digest.at(&self.0.bytes, row) != digest(value) {
            return false;
        }
        let mut name = Vec::with_capacity(32);
        self.0.append_name(row, &mut name);
        self.0.has_value(row, &name, value)
    }

    /// When the record of a row came, when it changed last, and how many times.
    #[must_use]
    pub fn history(&self, row: usize) -> History {
        let (numbers, bytes, last) = (&self.0.numbers, &self.0.bytes, self.last_sequence(row));
        let created = Sequence(last.0.wrapping_sub(numbers.lifetime.at(bytes, row)));
        History { created, last, version: numbers.version.at(bytes, row) }
    }

    /// The record of a row.
    #[must_use]
    pub fn record(&self, row: usize) -> Record {
        self.record_of(row, self.key(row))
    }

    /// The record of a row whose key is at hand, which is not read again.
    #[must_use]
    pub fn record_of(&self, row: usize, key: EntryKey) -> Record {
        let packed = &self.0;
        let mut value = Vec::with_capacity(256);
        packed.append_value(row, key.name.as_bytes(), &mut value);
        let extra = packed.extra(row);
        let History { created, last, version } = self.history(row);
        Record {
            key,
            value: value.into(),
            good_value: extra.and_then(|extra| extra.good_value).map(|span| span.of(&packed.bytes).into()),
            object: None,
            rejection: extra.and_then(|extra| extra.rejection.clone()),
            source: self.source(row),
            create_sequence: created,
            last_sequence: last,
            version,
            generation: 0,
        }
    }

    /// The last sequence of a row.
    #[must_use]
    pub fn last_sequence(&self, row: usize) -> Sequence {
        assert!(row < self.len(), "a row must be of the chunk");
        Sequence(self.0.numbers.last_sequence.at(&self.0.bytes, row))
    }

    /// The rows in order of last sequence. Worked out once, some 20 µs; 2 B a row from then on.
    #[must_use]
    pub fn by_sequence(&self) -> &[u16] {
        self.0.order.get_or_init(|| {
            let mut rows: Vec<u16> = (0..self.len()).map(|row| u16::try_from(row).unwrap_or(u16::MAX)).collect();
            rows.sort_by_cached_key(|row| self.last_sequence(usize::from(*row)));
            rows.into()
        })
    }

    /// Numbers that stand for something in the values of its rows, in order, each once. Worked out once, as a rule by decoding all of them; 4 B
    /// for each that differs from then on.
    pub fn noted(&self, of: impl FnOnce(&Self) -> Vec<u32>) -> &[u32] {
        self.0.noted.get_or_init(|| {
            let mut numbers = of(self);
            numbers.sort_unstable();
            numbers.dedup();
            numbers.into()
        })
    }

    /// Where the newest bytes of a row come from.
    #[must_use]
    pub fn source(&self, row: usize) -> SourceStamp {
        let (numbers, bytes) = (&self.0.numbers, &self.0.bytes);
        let (revision, lease) = (numbers.revision.at(bytes, row), numbers.lease.at(bytes, row));
        let held = numbers.flags.at(bytes, row) & flag::HELD != 0;
        SourceStamp { mod_revision: Revision(revision.cast_signed()), lease: LeaseId(lease.cast_signed()), held }
    }

    /// Whether the newest bytes of a row could not be used.
    #[must_use]
    pub fn is_rejected(&self, row: usize) -> bool {
        self.0.numbers.flags.at(&self.0.bytes, row) & flag::REJECTION != 0
    }

    /// Whether an ip entry of the chunk may name an identity. False is certain.
    #[must_use]
    pub fn may_name_identity(&self, identity: u32) -> bool {
        self.0.numbers.identity.may_hold(&self.0.bytes, u64::from(identity))
    }

    /// The identity that a row's ip entry names, where that is noted: 0 for other kinds.
    #[must_use]
    pub fn identity(&self, row: usize) -> u32 {
        u32::try_from(self.0.numbers.identity.at(&self.0.bytes, row)).unwrap_or(0)
    }

    /// Whether [`Chunk::meaning`] of any row is [`Meaning::Unknown`].
    #[must_use]
    pub fn has_unknown(&self) -> bool {
        (0..self.len()).any(|row| self.0.numbers.flags.at(&self.0.bytes, row) & flag::MEANING == flag::UNKNOWN)
    }

    /// The prefix that a row's last usable value stands for, where it is an ip entry and that is noted.
    #[must_use]
    pub fn prefix(&self, row: usize) -> Option<ObjectPrefix> {
        if self.0.is_usable(row) { self.0.prefix(row) } else { None }
    }

    /// The last usable bytes of a row's value, where it is noted what they mean.
    #[must_use]
    pub fn usable_value(&self, row: usize) -> Option<Vec<u8>> {
        let packed = &self.0;
        if !packed.is_usable(row) {
            return None;
        }
        if let Some(good) = packed.extra(row).and_then(|extra| extra.good_value) {
            return Some(good.of(&packed.bytes).to_vec());
        }
        let (mut name, mut value) = (Vec::with_capacity(32), Vec::with_capacity(256));
        packed.append_name(row, &mut name);
        packed.append_value(row, &name, &mut value);
        Some(value)
    }

    /// What a row's last usable value means.
    #[must_use]
    pub fn meaning(&self, row: usize) -> Meaning {
        let packed = &self.0;
        match packed.numbers.flags.at(&packed.bytes, row) & flag::MEANING {
            flag::USABLE => packed.usable(row).unwrap_or(Meaning::Unknown),
            flag::NOTHING => Meaning::Nothing,
            _ => Meaning::Unknown,
        }
    }
}

impl Packed {
    fn read(bytes: &Arc<[u8]>, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = reader.count(RECORDS_MAX)?;
        if count == 0 {
            return Err(Malformed::Field("count of records"));
        }
        let max_sequence = Sequence(reader.fixed()?);
        let groups = read_groups(reader, count)?;
        let names = Column::read(reader, count, 0)?;
        let numbers = NumberColumns::read(reader, count)?;
        let addresses = Column::read(reader, count, 0)?;
        let templates = read_templates(reader, count, numbers.template)?;
        let verbatim_count = (0..count).filter(|row| numbers.template.at(bytes, *row) == 0).count();
        let verbatim = Column::read(reader, verbatim_count, 0)?;
        let flags = |row| numbers.flags.at(bytes, row);
        let extras = read_extras(reader, count, flags)?;
        if !reader.is_empty() {
            return Err(Malformed::Field("end"));
        }
        let name = names.longest(0);
        let value_length_max = templates.iter().map(|template| template.longest(name)).fold(verbatim.longest(name), usize::max);
        let (bytes, order, noted) = (Arc::clone(bytes), OnceLock::new(), OnceLock::new());
        Ok(Self {
            bytes,
            count,
            max_sequence,
            groups,
            names,
            numbers,
            addresses,
            templates,
            verbatim,
            extras,
            order,
            noted,
            value_length_max,
        })
    }

    pub(super) fn group(&self, row: usize) -> &Group {
        let at = self.groups.partition_point(|group| group.end <= row);
        &self.groups[at]
    }

    pub(super) fn append_name(&self, row: usize, out: &mut Vec<u8>) {
        self.names.append(Row { bytes: &self.bytes, name: &[], index: row }, out);
    }

    fn append_value(&self, row: usize, name: &[u8], out: &mut Vec<u8>) {
        let bytes = &*self.bytes;
        let index = self.numbers.template.rank(bytes, row);
        let of_column = Row { bytes, name, index };
        let template = usize::try_from(self.numbers.template.at(bytes, row)).unwrap_or(0);
        let Some(template) = template.checked_sub(1).and_then(|at| self.templates.get(at)) else {
            return self.verbatim.append(of_column, out);
        };
        for (at, literal) in template.literals.iter().enumerate() {
            out.extend_from_slice(literal.of(bytes));
            if at < template.columns.len() {
                template.append(at, of_column, out);
            }
        }
    }

    fn has_value(&self, row: usize, name: &[u8], value: &[u8]) -> bool {
        let bytes = &*self.bytes;
        let of_column = Row { bytes, name, index: self.numbers.template.rank(bytes, row) };
        let template = usize::try_from(self.numbers.template.at(bytes, row)).unwrap_or(0);
        let (mut rest, mut part) = (Some(value), Vec::with_capacity(64));
        let Some(template) = template.checked_sub(1).and_then(|at| self.templates.get(at)) else {
            self.verbatim.append(of_column, &mut part);
            return part == value;
        };
        for (at, literal) in template.literals.iter().enumerate() {
            rest = rest.and_then(|rest| rest.strip_prefix(literal.of(bytes)));
            if at < template.columns.len() && rest.is_some() {
                part.clear();
                template.append(at, of_column, &mut part);
                rest = rest.and_then(|rest| rest.strip_prefix(&*part));
            }
        }
        rest.is_some_and(<[u8]>::is_empty)
    }

    /// What few of some rows have.
    pub(super) fn extras_in(&self, rows: Range<usize>) -> &[Extra] {
        let place = |row: usize| self.extras.partition_point(|extra| extra.row < row);
        &self.extras[place(rows.start)..place(rows.end)]
    }

    pub(super) fn extra(&self, row: usize) -> Option<&Extra> {
        self.extras.binary_search_by_key(&row, |extra| extra.row).ok().map(|at| &self.extras[at])
    }

    fn usable(&self, row: usize) -> Option<Meaning> {
        match self.group(row).kind {
            Kind::EndpointSlice | Kind::ServiceExport | Kind::Service => {
                let service = String::from_utf8(self.addresses_of(row)).ok()?;
                Some(Meaning::Service((!service.is_empty()).then(|| service.into())))
            }
            Kind::Cluster | Kind::Problem | Kind::Notice => None,
            Kind::Identity => self.name(row).parse().ok().map(Meaning::Identity),
            Kind::Node => Some(Meaning::Node { addresses: read_addresses(&self.addresses_of(row)) }),
            Kind::Ip | Kind::NodeIp => {
                let identity = u32::try_from(self.numbers.identity.at(&self.bytes, row)).ok()?;
                Some(Meaning::Ip { prefix: self.prefix(row)?, identity })
            }
        }
    }

    /// Whether it is noted what the last usable value of a row means.
    fn is_usable(&self, row: usize) -> bool {
        self.numbers.flags.at(&self.bytes, row) & flag::MEANING == flag::USABLE
    }

    /// The address in the name of a row, where it is an ip entry and its name is stored as that.
    fn ipv4_host(&self, row: usize) -> Option<Ipv4Addr> {
        self.names.ipv4(&self.bytes, row).filter(|_| self.group(row).kind == Kind::Ip)
    }

    /// What the name of a row stands for, where it is an ip entry.
    fn prefix(&self, row: usize) -> Option<ObjectPrefix> {
        if let Some(ip) = self.ipv4_host(row) {
            return Some(ObjectPrefix { net: IpNet::from(IpAddr::V4(ip)), host: true });
        }
        let kind = self.group(row).kind;
        if matches!(kind, Kind::Ip | Kind::NodeIp) { prefix_of_name(kind, &self.name(row)) } else { None }
    }

    fn addresses_of(&self, row: usize) -> Vec<u8> {
        let mut packed = Vec::new();
        self.addresses.append(Row { bytes: &self.bytes, name: &[], index: row }, &mut packed);
        packed
    }

    fn name(&self, row: usize) -> String {
        let mut name = Vec::new();
        self.append_name(row, &mut name);
        String::from_utf8_lossy(&name).into_owned()
    }
}
