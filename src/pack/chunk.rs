//! Read access to a chunk: it is checked once as a whole, then each record is decoded in place.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;

use super::byte_reader::ByteReader;
use super::column::{Column, RowInput};
use super::indexed_fields::{IndexedFields, prefix_of_name, read_addresses};
use super::sections::{NumberColumns, RecordExtra, ScopeGroup, Template, read_extras, read_groups, read_templates};
use super::text_filter::TextFilter;
use super::{CHECKSUM_LENGTH, DecodeError, FORMAT_VERSION, RECORDS_MAX, digest, flag};
use crate::model::{ClusterName, EntryKey, Kind, LeaseId, NODE_IP_MARK, ObjectPrefix, Record, Revision, Sequence, SourceStamp};

/// About a thousand packed records in key order. A clone shares the bytes.
#[derive(Clone)]
pub struct Chunk(pub(super) Arc<ChunkData>);

pub(super) struct ChunkData {
    pub(super) bytes: Arc<[u8]>,
    pub(super) count: usize,
    max_sequence: Sequence,
    pub(super) groups: Box<[ScopeGroup]>,
    pub(super) names: Column,
    pub(super) numbers: NumberColumns,
    /// Addresses of nodes, and names of global services.
    pub(super) addresses_or_service: Column,
    pub(super) templates: Box<[Template]>,
    pub(super) verbatim: Column,
    extras: Box<[RecordExtra]>,
    /// Rows sorted by last sequence, computed on the first use.
    rows_by_sequence: OnceLock<Box<[u16]>>,
    /// Filter of the texts in ipcache entries, computed on the first use.
    pub(super) text_filter: OnceLock<TextFilter>,
    /// Upper bound on the length of each value, in bytes.
    pub(super) value_length_max: usize,
}

/// Sequences and version of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHistory {
    /// Sequence of the change that created the record.
    pub created: Sequence,
    /// Sequence of its last change.
    pub last: Sequence,
    /// Number of changes since it was created, starting with 1.
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
    /// Reads a chunk and checks all of it, so that no later access can fail.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the bytes are not a chunk of this version.
    pub fn from_stored(bytes: impl Into<Arc<[u8]>>) -> Result<Self, DecodeError> {
        let bytes = bytes.into();
        let (sealed, checksum) = bytes.split_last_chunk::<CHECKSUM_LENGTH>().ok_or(DecodeError::Truncated)?;
        if crc32fast::hash(sealed).to_le_bytes() != *checksum {
            return Err(DecodeError::Checksum);
        }
        let packed = ChunkData::read(&bytes, &mut ByteReader::with_version(sealed, FORMAT_VERSION)?)?;
        Ok(Self(Arc::new(packed)))
    }

    /// Returns the bytes to store. They are shorter than [`super::STORED_LENGTH_MAX`] unless the
    /// chunk is [`Chunk::is_oversize`].
    #[must_use]
    pub fn stored(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Returns `true` if the chunk is not shorter than [`super::STORED_LENGTH_MAX`]. Such a chunk
    /// has one record, and the store splits its bytes.
    #[cfg(test)]
    #[must_use]
    pub fn is_oversize(&self) -> bool {
        self.0.bytes.len() >= super::STORED_LENGTH_MAX
    }

    /// Returns the number of records, at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no chunk is empty")]
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// Returns the lowest key.
    #[must_use]
    pub fn first_key(&self) -> EntryKey {
        self.key(0)
    }

    /// Returns the highest key.
    #[must_use]
    pub fn last_key(&self) -> EntryKey {
        self.key(self.len() - 1)
    }

    /// Returns the highest last sequence of the records.
    #[must_use]
    pub fn max_sequence(&self) -> Sequence {
        self.0.max_sequence
    }

    /// Decodes the record of a key, without its object and in generation 0.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn get(&self, key: &EntryKey) -> Option<Record> {
        self.find(key).ok().map(|row| self.record(row))
    }

    /// Decodes all records in key order, without their objects and in generation 0.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = Record> + ExactSizeIterator + '_ {
        (0..self.len()).map(|row| self.record(row))
    }

    /// Decodes the key of a row. Like all methods that accept a row, it panics if the row does not
    /// exist.
    #[must_use]
    pub fn key(&self, row: usize) -> EntryKey {
        let packed = &self.0;
        let group = packed.group(row);
        let mut name = Vec::with_capacity(32);
        packed.append_name(row, &mut name);
        EntryKey::new(group.kind, group.cluster.clone(), String::from_utf8_lossy(&name))
    }

    /// Iterates over the scopes of the chunk: the rows and the cluster of each. A cluster occurs
    /// once per kind.
    pub fn scopes(&self) -> impl Iterator<Item = (Range<usize>, &ClusterName)> {
        self.0.groups.iter().filter(|group| group.start < group.end).map(|group| (group.start..group.end, &group.cluster))
    }

    /// Returns the rows of one kind of one cluster.
    #[must_use]
    pub fn rows_of(&self, kind: Kind, cluster: &ClusterName) -> Range<usize> {
        let found = self.0.groups.iter().find(|group| group.kind == kind && group.cluster == *cluster);
        found.map_or(0..0, |group| group.start..group.end)
    }

    /// Returns `false` if no row is held ([`SourceStamp::held`]). `true` may be wrong.
    #[must_use]
    pub fn may_have_held_rows(&self) -> bool {
        (flag::HELD..2 * flag::HELD).any(|flags| self.0.numbers.flags.may_contain(&self.0.bytes, flags))
    }

    /// Appends the key of a row as bytes that sort in key order.
    pub fn append_key(&self, row: usize, out: &mut Vec<u8>) {
        let group = self.0.group(row);
        out.push(group.kind as u8);
        out.extend_from_slice(group.cluster.as_str().as_bytes());
        out.push(b'/');
        self.0.append_name(row, out);
    }

    /// Returns the kind and the cluster of a row.
    #[must_use]
    pub fn scope(&self, row: usize) -> (Kind, &ClusterName) {
        let group = self.0.group(row);
        (group.kind, &group.cluster)
    }

    /// Returns the address of a row if it is a usable ipcache entry whose key is an IPv4 address.
    /// Most rows are such entries.
    #[must_use]
    pub fn ipv4_host(&self, row: usize) -> Option<Ipv4Addr> {
        if self.0.is_usable(row) { self.0.ipv4_host(row) } else { None }
    }

    /// Returns the prefix of a row and writes its node's name to `node`, if the row is a usable
    /// entry derived from a node.
    #[must_use]
    pub fn node_ip(&self, row: usize, node: &mut Vec<u8>) -> Option<ObjectPrefix> {
        if !self.0.is_usable(row) || self.scope(row).0 != Kind::NodeIp {
            return None;
        }
        node.clear();
        self.0.append_name(row, node);
        // the form of the name was checked when the chunk was built
        let (name, text) = std::str::from_utf8(node).ok()?.rsplit_once(NODE_IP_MARK)?;
        let (length, prefix) = (name.len(), ObjectPrefix::parse(text)?);
        node.truncate(length);
        Some(prefix)
    }

    /// Returns `true` if `value` is the newest value of a row. Decoding stops at the first
    /// difference.
    #[must_use]
    pub fn has_value(&self, row: usize, value: &[u8]) -> bool {
        if self.0.numbers.digest.get(&self.0.bytes, row) != digest(value) {
            return false;
        }
        let mut name = Vec::with_capacity(32);
        self.0.append_name(row, &mut name);
        self.0.has_value(row, &name, value)
    }

    /// Returns the sequences and the version of a row.
    #[must_use]
    pub fn history(&self, row: usize) -> RecordHistory {
        let (numbers, bytes, last) = (&self.0.numbers, &self.0.bytes, self.last_sequence(row));
        let created = Sequence(last.0.wrapping_sub(numbers.lifetime.get(bytes, row)));
        RecordHistory { created, last, version: numbers.version.get(bytes, row) }
    }

    /// Decodes the record of a row.
    #[must_use]
    pub fn record(&self, row: usize) -> Record {
        self.record_with_key(row, self.key(row))
    }

    /// Decodes the record of a row whose key is already decoded.
    #[must_use]
    pub fn record_with_key(&self, row: usize, key: EntryKey) -> Record {
        let packed = &self.0;
        let mut value = Vec::with_capacity(256);
        packed.append_value(row, key.name.as_bytes(), &mut value);
        let extra = packed.extra(row);
        let RecordHistory { created, last, version } = self.history(row);
        Record {
            key,
            value: value.into(),
            good_value: extra.and_then(|extra| extra.good_value).map(|span| span.slice(&packed.bytes).into()),
            object: None,
            rejection: extra.and_then(|extra| extra.rejection.clone()),
            source: self.source(row),
            create_sequence: created,
            last_sequence: last,
            version,
            generation: 0,
        }
    }

    /// Returns the last sequence of a row.
    #[must_use]
    pub fn last_sequence(&self, row: usize) -> Sequence {
        assert!(row < self.len(), "the row must exist in the chunk");
        Sequence(self.0.numbers.last_sequence.get(&self.0.bytes, row))
    }

    /// Returns the rows sorted by last sequence. The first call takes about 20 µs; the result uses
    /// 2 bytes per row.
    #[must_use]
    pub fn rows_by_sequence(&self) -> &[u16] {
        self.0.rows_by_sequence.get_or_init(|| {
            let mut rows: Vec<u16> = (0..self.len()).map(|row| u16::try_from(row).unwrap_or(u16::MAX)).collect();
            rows.sort_by_cached_key(|row| self.last_sequence(usize::from(*row)));
            rows.into()
        })
    }

    /// Returns the revision, lease and held mark of a row's newest value.
    #[must_use]
    pub fn source(&self, row: usize) -> SourceStamp {
        let (numbers, bytes) = (&self.0.numbers, &self.0.bytes);
        let (revision, lease) = (numbers.revision.get(bytes, row), numbers.lease.get(bytes, row));
        let held = numbers.flags.get(bytes, row) & flag::HELD != 0;
        SourceStamp { mod_revision: Revision(revision.cast_signed()), lease: LeaseId(lease.cast_signed()), held }
    }

    /// Returns `true` if the newest value of a row was rejected.
    #[must_use]
    pub fn is_rejected(&self, row: usize) -> bool {
        self.0.numbers.flags.get(&self.0.bytes, row) & flag::REJECTION != 0
    }

    /// Returns `false` if no ipcache entry of the chunk names the identity. `true` may be wrong.
    #[must_use]
    pub fn may_name_identity(&self, identity: u32) -> bool {
        self.0.numbers.identity.may_contain(&self.0.bytes, u64::from(identity))
    }

    /// Returns the identity that a row's ipcache entry names. Valid only if the indexed fields of
    /// the row are known; 0 for other kinds.
    #[must_use]
    pub fn identity(&self, row: usize) -> u32 {
        u32::try_from(self.0.numbers.identity.get(&self.0.bytes, row)).unwrap_or(0)
    }

    /// Returns `true` if the indexed fields of any row are [`IndexedFields::Unknown`].
    #[must_use]
    pub fn has_unknown_fields(&self) -> bool {
        (0..self.len()).any(|row| self.0.numbers.flags.get(&self.0.bytes, row) & flag::INDEXED_FIELDS_MASK == flag::UNKNOWN)
    }

    /// Returns the prefix of a row's last usable value, if the row is an ipcache entry and its
    /// indexed fields are known.
    #[must_use]
    pub fn prefix(&self, row: usize) -> Option<ObjectPrefix> {
        if self.0.is_usable(row) { self.0.prefix(row) } else { None }
    }

    /// Returns the last usable value of a row, if its indexed fields are known.
    #[must_use]
    pub fn usable_value(&self, row: usize) -> Option<Vec<u8>> {
        let packed = &self.0;
        if !packed.is_usable(row) {
            return None;
        }
        if let Some(good) = packed.extra(row).and_then(|extra| extra.good_value) {
            return Some(good.slice(&packed.bytes).to_vec());
        }
        let (mut name, mut value) = (Vec::with_capacity(32), Vec::with_capacity(256));
        packed.append_name(row, &mut name);
        packed.append_value(row, &name, &mut value);
        Some(value)
    }

    /// Returns an upper bound on the length of a row's value in bytes. Returns `None` if the last
    /// usable value of the row can differ from the newest.
    #[must_use]
    pub fn value_length_max(&self, row: usize) -> Option<usize> {
        self.0.extra(row).is_none().then_some(self.0.value_length_max)
    }

    /// Returns the number of clones that share the bytes of the chunk, this one included.
    #[cfg(test)]
    pub fn share_count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Returns the indexed fields of a row's last usable value.
    #[must_use]
    pub fn indexed_fields(&self, row: usize) -> IndexedFields {
        let packed = &self.0;
        match packed.numbers.flags.get(&packed.bytes, row) & flag::INDEXED_FIELDS_MASK {
            flag::USABLE => packed.usable_fields(row).unwrap_or(IndexedFields::Unknown),
            flag::NOTHING => IndexedFields::Nothing,
            _ => IndexedFields::Unknown,
        }
    }
}

impl ChunkData {
    fn read(bytes: &Arc<[u8]>, reader: &mut ByteReader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count(RECORDS_MAX)?;
        if count == 0 {
            return Err(DecodeError::Field("count of records"));
        }
        let max_sequence = Sequence(reader.read_u64()?);
        let groups = read_groups(reader, count)?;
        let names = Column::read(reader, count, 0)?;
        let numbers = NumberColumns::read(reader, count)?;
        let addresses = Column::read(reader, count, 0)?;
        let templates = read_templates(reader, count, numbers.template)?;
        let verbatim_count = (0..count).filter(|row| numbers.template.get(bytes, *row) == 0).count();
        let verbatim = Column::read(reader, verbatim_count, 0)?;
        let flags = |row| numbers.flags.get(bytes, row);
        let extras = read_extras(reader, count, flags)?;
        if !reader.is_empty() {
            return Err(DecodeError::Field("end"));
        }
        let name_length_max = names.value_length_max(0);
        let value_length_max = templates
            .iter()
            .map(|template| template.value_length_max(name_length_max))
            .fold(verbatim.value_length_max(name_length_max), usize::max);
        let (bytes, rows_by_sequence) = (Arc::clone(bytes), OnceLock::new());
        Ok(Self {
            bytes,
            count,
            max_sequence,
            groups,
            names,
            numbers,
            addresses_or_service: addresses,
            templates,
            verbatim,
            extras,
            rows_by_sequence,
            text_filter: OnceLock::new(),
            value_length_max,
        })
    }

    pub(super) fn group(&self, row: usize) -> &ScopeGroup {
        let index = self.groups.partition_point(|group| group.end <= row);
        &self.groups[index]
    }

    /// Returns the index of a row's template; `None` if the value has no template.
    pub(super) fn template_index(&self, row: usize) -> Option<usize> {
        usize::try_from(self.numbers.template.get(&self.bytes, row)).ok()?.checked_sub(1)
    }

    pub(super) fn append_name(&self, row: usize, out: &mut Vec<u8>) {
        self.names.append(RowInput { bytes: &self.bytes, name: &[], index: row }, out);
    }

    fn append_value(&self, row: usize, name: &[u8], out: &mut Vec<u8>) {
        let bytes = &*self.bytes;
        let index = self.numbers.template.rank(bytes, row);
        let input = RowInput { bytes, name, index };
        let Some(template) = self.template_index(row).map(|index| &self.templates[index]) else {
            return self.verbatim.append(input, out);
        };
        for (hole, literal) in template.literals.iter().enumerate() {
            out.extend_from_slice(literal.slice(bytes));
            if hole < template.columns.len() {
                template.append(hole, input, out);
            }
        }
    }

    fn has_value(&self, row: usize, name: &[u8], value: &[u8]) -> bool {
        let bytes = &*self.bytes;
        let input = RowInput { bytes, name, index: self.numbers.template.rank(bytes, row) };
        let (mut rest, mut part) = (Some(value), Vec::with_capacity(64));
        let Some(template) = self.template_index(row).map(|index| &self.templates[index]) else {
            self.verbatim.append(input, &mut part);
            return part == value;
        };
        for (hole, literal) in template.literals.iter().enumerate() {
            rest = rest.and_then(|rest| rest.strip_prefix(literal.slice(bytes)));
            if hole < template.columns.len() && rest.is_some() {
                part.clear();
                template.append(hole, input, &mut part);
                rest = rest.and_then(|rest| rest.strip_prefix(&*part));
            }
        }
        rest.is_some_and(<[u8]>::is_empty)
    }

    /// Returns the good values and rejections within some rows.
    pub(super) fn extras_in(&self, rows: Range<usize>) -> &[RecordExtra] {
        let position = |row: usize| self.extras.partition_point(|extra| extra.row < row);
        &self.extras[position(rows.start)..position(rows.end)]
    }

    pub(super) fn extra(&self, row: usize) -> Option<&RecordExtra> {
        self.extras.binary_search_by_key(&row, |extra| extra.row).ok().map(|index| &self.extras[index])
    }

    fn usable_fields(&self, row: usize) -> Option<IndexedFields> {
        match self.group(row).kind {
            Kind::EndpointSlice | Kind::ServiceExport | Kind::Service => {
                let service = String::from_utf8(self.addresses_or_service(row)).ok()?;
                Some(IndexedFields::Service((!service.is_empty()).then(|| service.into())))
            }
            Kind::Cluster | Kind::Problem | Kind::Notice => None,
            Kind::Identity => self.name(row).parse().ok().map(IndexedFields::Identity),
            Kind::Node => Some(IndexedFields::Node { addresses: read_addresses(&self.addresses_or_service(row)) }),
            Kind::Ip | Kind::NodeIp => {
                let identity = u32::try_from(self.numbers.identity.get(&self.bytes, row)).ok()?;
                Some(IndexedFields::Ip { prefix: self.prefix(row)?, identity })
            }
        }
    }

    /// Returns `true` if the row's last usable value has indexed fields.
    fn is_usable(&self, row: usize) -> bool {
        self.numbers.flags.get(&self.bytes, row) & flag::INDEXED_FIELDS_MASK == flag::USABLE
    }

    /// Returns the address in a row's key, if the row is an ipcache entry and its name is stored as
    /// IPv4.
    fn ipv4_host(&self, row: usize) -> Option<Ipv4Addr> {
        self.names.ipv4(&self.bytes, row).filter(|_| self.group(row).kind == Kind::Ip)
    }

    /// Parses the prefix in a row's key, if the row is an ipcache entry.
    fn prefix(&self, row: usize) -> Option<ObjectPrefix> {
        if let Some(ip) = self.ipv4_host(row) {
            return Some(ObjectPrefix { net: IpNet::from(IpAddr::V4(ip)), host: true });
        }
        let kind = self.group(row).kind;
        if matches!(kind, Kind::Ip | Kind::NodeIp) { prefix_of_name(kind, &self.name(row)) } else { None }
    }

    fn addresses_or_service(&self, row: usize) -> Vec<u8> {
        let mut packed = Vec::new();
        self.addresses_or_service.append(RowInput { bytes: &self.bytes, name: &[], index: row }, &mut packed);
        packed
    }

    fn name(&self, row: usize) -> String {
        let mut name = Vec::new();
        self.append_name(row, &mut name);
        String::from_utf8_lossy(&name).into_owned()
    }
}
