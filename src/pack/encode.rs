//! The encoder: writes records as the bytes of a chunk.

use std::net::IpAddr;
use std::ops::Range;
use std::time::SystemTime;

use super::byte_reader::{put_fixed, put_text, put_varint};
use super::form_choice::{ColumnValues, FastMap, put_column};
use super::indexed_fields::{IndexedFields, kind_number};
use super::number_column::put_numbers;
use super::template::{HOLES_MAX, holes};
use super::{FORMAT_VERSION, TEMPLATES_MAX, digest, flag};
use crate::model::{Record, Rejection};

/// Minimum number of values per template. With fewer, a template costs more than it saves.
const TEMPLATE_USES_MIN: usize = 3;

/// Values with the same template.
struct TemplateGroup<'a> {
    /// One of the values. The template consists of the literals around its holes.
    sample: &'a [u8],
    holes: Vec<Range<usize>>,
    rows: Vec<usize>,
    /// Texts in the holes, by hole and then by row.
    columns: Vec<Vec<&'a [u8]>>,
}

/// Encodes records, which must be in key order, as a chunk.
pub(super) fn encode(rows: &[(&Record, IndexedFields)]) -> Vec<u8> {
    let records: Vec<&Record> = rows.iter().map(|(record, _)| *record).collect();
    let records = records.as_slice();
    let names: Vec<&[u8]> = records.iter().map(|record| record.key.name.as_bytes()).collect();
    let mut out = vec![FORMAT_VERSION];
    put_varint(&mut out, records.len() as u64);
    let max_sequence = records.iter().map(|record| record.last_sequence.0).max().unwrap_or(0);
    put_fixed(&mut out, max_sequence, 8);
    put_groups(&mut out, records);
    put_column(&mut out, &ColumnValues { values: &names, names: &[] }, &[]);
    put_number_columns(&mut out, records);
    let flags: Vec<u64> = rows.iter().map(|(record, fields)| flags(record, fields)).collect();
    put_numbers(&mut out, &flags);
    let identities: Vec<u64> = rows.iter().map(|(_, fields)| identity(fields)).collect();
    put_numbers(&mut out, &identities);
    let addresses: Vec<Vec<u8>> = rows.iter().map(|(_, fields)| addresses_or_service(fields)).collect();
    put_values(&mut out, records, &names, &addresses);
    for record in records {
        put_extra(&mut out, record.good_value.as_deref(), record.rejection.as_ref());
    }
    let checksum = crc32fast::hash(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

fn put_groups(out: &mut Vec<u8>, records: &[&Record]) {
    let groups: Vec<_> = records.chunk_by(|left, right| left.key.kind == right.key.kind && left.key.cluster == right.key.cluster).collect();
    put_varint(out, groups.len() as u64);
    for group in groups {
        out.push(kind_number(group[0].key.kind));
        put_text(out, group[0].key.cluster.as_str().as_bytes());
        put_varint(out, group.len() as u64);
    }
}

fn put_number_columns(out: &mut Vec<u8>, records: &[&Record]) {
    let mut put = |number: fn(&Record) -> u64| put_numbers(out, &records.iter().map(|record| number(record)).collect::<Vec<_>>());
    put(|record| record.last_sequence.0);
    put(|record| record.last_sequence.0.wrapping_sub(record.create_sequence.0));
    put(|record| record.version);
    put(|record| record.source.mod_revision.0.cast_unsigned());
    put(|record| record.source.lease.0.cast_unsigned());
    put(|record| digest(&record.value));
}

pub(super) fn flags(record: &Record, fields: &IndexedFields) -> u64 {
    let bit = |set: bool, flag: u64| if set { flag } else { 0 };
    bit(record.good_value.is_some(), flag::GOOD_VALUE)
        | bit(record.rejection.is_some(), flag::REJECTION)
        | bit(record.source.held, flag::HELD)
        | indexed_fields_flag(record, fields)
}

/// Returns the flag for a record's indexed fields. Fields that a chunk cannot restore unchanged are
/// stored as unknown.
fn indexed_fields_flag(record: &Record, fields: &IndexedFields) -> u64 {
    match fields {
        IndexedFields::Nothing => flag::NOTHING,
        _ if fields.is_restorable(&record.key) => flag::USABLE,
        _ => flag::UNKNOWN,
    }
}

pub(super) fn identity(fields: &IndexedFields) -> u64 {
    if let IndexedFields::Ip { identity, .. } = fields { u64::from(*identity) } else { 0 }
}

/// Returns the packed addresses of a node, or the name of the global service that an entry
/// contributes to. Both are stored in one column.
pub(super) fn addresses_or_service(fields: &IndexedFields) -> Vec<u8> {
    let addresses = match fields {
        IndexedFields::Node { addresses } => addresses,
        IndexedFields::Service(Some(service)) => return service.as_bytes().to_vec(),
        _ => return Vec::new(),
    };
    let mut packed = Vec::new();
    for address in addresses {
        match address {
            IpAddr::V4(ip) => {
                packed.push(4);
                packed.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                packed.push(6);
                packed.extend_from_slice(&ip.octets());
            }
        }
    }
    packed
}

/// Appends the template numbers, the column of addresses, the templates with their columns, and the
/// values without a template.
fn put_values(out: &mut Vec<u8>, records: &[&Record], names: &[&[u8]], addresses: &[Vec<u8>]) {
    let mut groups = group_by_template(records);
    groups.retain(|group| group.rows.len() >= TEMPLATE_USES_MIN);
    groups.sort_by_key(|group| std::cmp::Reverse(group.rows.len()));
    groups.truncate(TEMPLATES_MAX);
    let mut template_of = vec![0; records.len()];
    for (index, group) in groups.iter().enumerate() {
        group.rows.iter().for_each(|row| template_of[*row] = index as u64 + 1);
    }
    put_numbers(out, &template_of);
    let addresses: Vec<&[u8]> = addresses.iter().map(Vec::as_slice).collect();
    put_column(out, &ColumnValues { values: &addresses, names: &[] }, &[]);
    put_varint(out, groups.len() as u64);
    for group in &groups {
        put_template(out, group, names);
    }
    let verbatim = records.iter().zip(&template_of).filter(|(_, template)| **template == 0);
    let verbatim: Vec<&[u8]> = verbatim.map(|(record, _)| &*record.value).collect();
    put_column(out, &ColumnValues { values: &verbatim, names: &[] }, &[]);
}

fn group_by_template<'a>(records: &[&'a Record]) -> Vec<TemplateGroup<'a>> {
    let mut groups: Vec<TemplateGroup<'a>> = Vec::new();
    let mut indices = FastMap::<Vec<u8>, usize>::default();
    let (mut ranges, mut last) = (Vec::new(), None);
    for (row, record) in records.iter().enumerate() {
        let value: &'a [u8] = &record.value;
        if holes(value, &mut ranges).is_none() {
            continue;
        }
        let index = match last.filter(|last: &usize| groups[*last].fits(value, &ranges)) {
            Some(last) => last,
            None => *indices.entry(template_key(value, &ranges)).or_insert_with(|| {
                groups.push(TemplateGroup {
                    sample: value,
                    holes: ranges.clone(),
                    rows: Vec::new(),
                    columns: vec![Vec::new(); ranges.len()],
                });
                groups.len() - 1
            }),
        };
        last = Some(index);
        let group = &mut groups[index];
        group.rows.push(row);
        group.columns.iter_mut().zip(&ranges).for_each(|(column, range)| column.push(&value[range.clone()]));
    }
    groups
}

/// Returns the literals around the holes, each after its length, so that different templates have
/// different keys.
fn template_key(value: &[u8], holes: &[Range<usize>]) -> Vec<u8> {
    let mut key = Vec::with_capacity(value.len());
    for literal in literals(value, holes) {
        put_text(&mut key, literal);
    }
    key
}

pub(super) fn literals<'a>(value: &'a [u8], holes: &'a [Range<usize>]) -> impl Iterator<Item = &'a [u8]> {
    let starts = std::iter::once(0).chain(holes.iter().map(|hole| hole.end));
    let ends = holes.iter().map(|hole| hole.start).chain([value.len()]);
    starts.zip(ends).map(|(start, end)| &value[start..end])
}

impl TemplateGroup<'_> {
    fn fits(&self, value: &[u8], ranges: &[Range<usize>]) -> bool {
        self.holes.len() == ranges.len() && literals(self.sample, &self.holes).eq(literals(value, ranges))
    }
}

fn put_template(out: &mut Vec<u8>, group: &TemplateGroup<'_>, names: &[&[u8]]) {
    debug_assert!(group.holes.len() <= HOLES_MAX, "a value with too many holes must stay as it is");
    put_varint(out, group.holes.len() as u64);
    literals(group.sample, &group.holes).for_each(|literal| put_text(out, literal));
    let names: Vec<&[u8]> = group.rows.iter().map(|row| names[*row]).collect();
    for (hole, column) in group.columns.iter().enumerate() {
        put_column(out, &ColumnValues { values: column, names: &names }, &group.columns[..hole]);
    }
}

/// Appends the last good value and the rejection of a record, if it has them.
pub(super) fn put_extra(out: &mut Vec<u8>, good_value: Option<&[u8]>, rejection: Option<&Rejection>) {
    if let Some(good_value) = good_value {
        put_text(out, good_value);
    }
    if let Some(Rejection { reason, first_seen, last_seen }) = rejection {
        put_text(out, reason.as_bytes());
        put_time(out, *first_seen);
        put_time(out, *last_seen);
    }
}

fn put_time(out: &mut Vec<u8>, time: SystemTime) {
    let (earlier, distance) = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(distance) => (0, distance),
        Err(error) => (1, error.duration()),
    };
    out.push(earlier);
    put_varint(out, distance.as_secs());
    put_varint(out, u64::from(distance.subsec_nanos()));
}
