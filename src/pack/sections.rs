//! The parts of a chunk that are parsed and checked once, when it is read.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::byte_reader::{ByteReader, ByteSpan};
use super::column::{Column, ColumnForm, RowInput};
use super::indexed_fields::kind_number;
use super::number_column::NumberColumn;
use super::template::HOLES_MAX;
use super::{DecodeError, TEMPLATES_MAX, flag};
use crate::model::{ClusterName, Kind, Rejection};

/// Columns of numbers, with one row per record.
pub(super) struct NumberColumns {
    pub(super) last_sequence: NumberColumn,
    /// Last sequence minus sequence of creation.
    pub(super) lifetime: NumberColumn,
    pub(super) version: NumberColumn,
    pub(super) revision: NumberColumn,
    pub(super) lease: NumberColumn,
    pub(super) digest: NumberColumn,
    pub(super) flags: NumberColumn,
    pub(super) identity: NumberColumn,
    pub(super) template: NumberColumn,
}

/// Rows of one scope.
pub(super) struct ScopeGroup {
    pub(super) kind: Kind,
    pub(super) cluster: ClusterName,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A template: the literals around the holes, and a column for each hole.
pub(super) struct Template {
    /// Number of rows.
    pub(super) rows: usize,
    pub(super) literals: Box<[ByteSpan]>,
    pub(super) columns: Box<[Column]>,
    /// Columns of each field by which ipcache entries are filtered; `None` if they are unknown.
    pub(super) ip_columns: [Option<Vec<usize>>; 3],
}

/// Last good value and rejection of a record that has either.
pub(super) struct RecordExtra {
    pub(super) row: usize,
    pub(super) good_value: Option<ByteSpan>,
    pub(super) rejection: Option<Rejection>,
}

impl Template {
    /// Returns an upper bound on the length of a value, if names have at most `name_length_max`
    /// bytes.
    pub(super) fn value_length_max(&self, name_length_max: usize) -> usize {
        let mut columns: Vec<usize> = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let earlier = if let ColumnForm::Same(earlier) = column.form { columns.get(earlier as usize).copied() } else { None };
            columns.push(column.value_length_max(name_length_max).max(earlier.unwrap_or(0)));
        }
        self.literals.iter().map(|literal| literal.length()).sum::<usize>() + columns.iter().sum::<usize>()
    }

    /// Appends the text in a hole.
    pub(super) fn append(&self, mut column: usize, row: RowInput<'_>, out: &mut Vec<u8>) {
        // each step leads to an earlier column, so the loop ends
        while let Some(earlier) = self.columns[column].same_as(row.index) {
            column = earlier;
        }
        self.columns[column].append(row, out);
    }
}

impl NumberColumns {
    pub(super) fn read(reader: &mut ByteReader<'_>, count: usize) -> Result<Self, DecodeError> {
        Ok(Self {
            last_sequence: NumberColumn::read(reader, count)?,
            lifetime: NumberColumn::read(reader, count)?,
            version: NumberColumn::read(reader, count)?,
            revision: NumberColumn::read(reader, count)?,
            lease: NumberColumn::read(reader, count)?,
            digest: NumberColumn::read(reader, count)?,
            flags: NumberColumn::read(reader, count)?,
            identity: NumberColumn::read(reader, count)?,
            template: NumberColumn::read(reader, count)?,
        })
    }
}

pub(super) fn read_groups(reader: &mut ByteReader<'_>, count: usize) -> Result<Box<[ScopeGroup]>, DecodeError> {
    let mut groups: Vec<ScopeGroup> = Vec::new();
    let mut start = 0;
    for _ in 0..reader.count(count)? {
        let number = reader.byte()?;
        let kind = Kind::STORED.into_iter().find(|kind| kind_number(*kind) == number).ok_or(DecodeError::Field("kind"))?;
        let cluster = reader.span()?.slice(reader.all());
        let cluster = std::str::from_utf8(cluster).ok().and_then(|text| ClusterName::parse(text).ok());
        let end = start + reader.count(count - start)?;
        groups.push(ScopeGroup { kind, cluster: cluster.ok_or(DecodeError::Field("cluster"))?, start, end });
        start = end;
    }
    if start == count { Ok(groups.into()) } else { Err(DecodeError::Field("rows of a group")) }
}

pub(super) fn read_templates(reader: &mut ByteReader<'_>, count: usize, template: NumberColumn) -> Result<Box<[Template]>, DecodeError> {
    let length = reader.count(TEMPLATES_MAX)?;
    let mut rows = vec![0; length + 1];
    for row in 0..count {
        let number = usize::try_from(template.get(reader.all(), row)).unwrap_or(usize::MAX);
        *rows.get_mut(number).ok_or(DecodeError::Field("template"))? += 1;
    }
    let mut templates = Vec::new();
    for count in rows.into_iter().skip(1) {
        let holes = reader.count(HOLES_MAX)?;
        let literals = (0..=holes).map(|_| reader.span()).collect::<Result<_, _>>()?;
        let columns = (0..holes).map(|earlier| Column::read(reader, count, earlier)).collect::<Result<_, _>>()?;
        let mut template = Template { rows: count, literals, columns, ip_columns: [const { None }; 3] };
        template.find_ip_columns(reader.all());
        templates.push(template);
    }
    Ok(templates.into())
}

pub(super) fn read_extras(
    reader: &mut ByteReader<'_>,
    count: usize,
    flags: impl Fn(usize) -> u64,
) -> Result<Box<[RecordExtra]>, DecodeError> {
    let mut extras = Vec::new();
    for row in (0..count).filter(|row| flags(*row) & (flag::GOOD_VALUE | flag::REJECTION) != 0) {
        let good_value = if flags(row) & flag::GOOD_VALUE != 0 { Some(reader.span()?) } else { None };
        let rejection = if flags(row) & flag::REJECTION != 0 { Some(read_rejection(reader)?) } else { None };
        extras.push(RecordExtra { row, good_value, rejection });
    }
    Ok(extras.into())
}

fn read_rejection(reader: &mut ByteReader<'_>) -> Result<Rejection, DecodeError> {
    let reason = std::str::from_utf8(reader.span()?.slice(reader.all())).map_err(|_| DecodeError::Field("reason"))?;
    let reason = Arc::from(reason);
    Ok(Rejection { reason, first_seen: read_time(reader)?, last_seen: read_time(reader)? })
}

fn read_time(reader: &mut ByteReader<'_>) -> Result<SystemTime, DecodeError> {
    let invalid = DecodeError::Field("time");
    let earlier = reader.byte()? != 0;
    let seconds = reader.varint()?;
    let nanoseconds = u32::try_from(reader.varint()?).ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000).ok_or(invalid)?;
    let distance = Duration::new(seconds, nanoseconds);
    let epoch = SystemTime::UNIX_EPOCH;
    if earlier { epoch.checked_sub(distance) } else { epoch.checked_add(distance) }.ok_or(invalid)
}
