//! The parts of a chunk that are parsed and checked once, when it is read.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::bytes::{Reader, Span};
use super::column::{Column, Form, Row};
use super::meaning::kind_number;
use super::number::Numbers;
use super::template::HOLES_MAX;
use super::{Malformed, TEMPLATES_MAX, flag};
use crate::model::{ClusterName, Kind, Rejection};

/// Columns of numbers, with one row per record.
pub(super) struct NumberColumns {
    pub(super) last_sequence: Numbers,
    /// Last sequence minus sequence of creation.
    pub(super) lifetime: Numbers,
    pub(super) version: Numbers,
    pub(super) revision: Numbers,
    pub(super) lease: Numbers,
    pub(super) digest: Numbers,
    pub(super) flags: Numbers,
    pub(super) identity: Numbers,
    pub(super) template: Numbers,
}

/// Rows of one scope.
pub(super) struct Group {
    pub(super) kind: Kind,
    pub(super) cluster: ClusterName,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A template: the literals around the holes, and a column for each hole.
pub(super) struct Template {
    pub(super) literals: Box<[Span]>,
    pub(super) columns: Box<[Column]>,
}

/// Last good value and rejection of a record that has either.
pub(super) struct Extra {
    pub(super) row: usize,
    pub(super) good_value: Option<Span>,
    pub(super) rejection: Option<Rejection>,
}

impl Template {
    /// Returns an upper bound on the length of a value, if names have at most `name` bytes.
    pub(super) fn longest(&self, name: usize) -> usize {
        let mut columns: Vec<usize> = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let earlier = if let Form::Same(earlier) = column.form { columns.get(earlier as usize).copied() } else { None };
            columns.push(column.longest(name).max(earlier.unwrap_or(0)));
        }
        self.literals.iter().map(|literal| literal.length()).sum::<usize>() + columns.iter().sum::<usize>()
    }

    /// Appends the text in a hole.
    pub(super) fn append(&self, mut column: usize, row: Row<'_>, out: &mut Vec<u8>) {
        // each step leads to an earlier column, so the loop ends
        while let Some(earlier) = self.columns[column].same_as(row.index) {
            column = earlier;
        }
        self.columns[column].append(row, out);
    }
}

impl NumberColumns {
    pub(super) fn read(reader: &mut Reader<'_>, count: usize) -> Result<Self, Malformed> {
        Ok(Self {
            last_sequence: Numbers::read(reader, count)?,
            lifetime: Numbers::read(reader, count)?,
            version: Numbers::read(reader, count)?,
            revision: Numbers::read(reader, count)?,
            lease: Numbers::read(reader, count)?,
            digest: Numbers::read(reader, count)?,
            flags: Numbers::read(reader, count)?,
            identity: Numbers::read(reader, count)?,
            template: Numbers::read(reader, count)?,
        })
    }
}

pub(super) fn read_groups(reader: &mut Reader<'_>, count: usize) -> Result<Box<[Group]>, Malformed> {
    let mut groups: Vec<Group> = Vec::new();
    let mut start = 0;
    for _ in 0..reader.count(count)? {
        let number = reader.byte()?;
        let kind = Kind::STORED.into_iter().find(|kind| kind_number(*kind) == number).ok_or(Malformed::Field("kind"))?;
        let cluster = reader.span()?.of(reader.all());
        let cluster = std::str::from_utf8(cluster).ok().and_then(|text| ClusterName::parse(text).ok());
        let end = start + reader.count(count - start)?;
        groups.push(Group { kind, cluster: cluster.ok_or(Malformed::Field("cluster"))?, start, end });
        start = end;
    }
    if start == count { Ok(groups.into()) } else { Err(Malformed::Field("rows of a group")) }
}

pub(super) fn read_templates(reader: &mut Reader<'_>, count: usize, template: Numbers) -> Result<Box<[Template]>, Malformed> {
    let length = reader.count(TEMPLATES_MAX)?;
    let mut rows = vec![0; length + 1];
    for row in 0..count {
        let at = usize::try_from(template.at(reader.all(), row)).unwrap_or(usize::MAX);
        *rows.get_mut(at).ok_or(Malformed::Field("template"))? += 1;
    }
    let mut templates = Vec::new();
    for count in rows.into_iter().skip(1) {
        let holes = reader.count(HOLES_MAX)?;
        let literals = (0..=holes).map(|_| reader.span()).collect::<Result<_, _>>()?;
        let columns = (0..holes).map(|earlier| Column::read(reader, count, earlier)).collect::<Result<_, _>>()?;
        templates.push(Template { literals, columns });
    }
    Ok(templates.into())
}

pub(super) fn read_extras(reader: &mut Reader<'_>, count: usize, flags: impl Fn(usize) -> u64) -> Result<Box<[Extra]>, Malformed> {
    let mut extras = Vec::new();
    for row in (0..count).filter(|row| flags(*row) & (flag::GOOD_VALUE | flag::REJECTION) != 0) {
        let good_value = if flags(row) & flag::GOOD_VALUE != 0 { Some(reader.span()?) } else { None };
        let rejection = if flags(row) & flag::REJECTION != 0 { Some(read_rejection(reader)?) } else { None };
        extras.push(Extra { row, good_value, rejection });
    }
    Ok(extras.into())
}

fn read_rejection(reader: &mut Reader<'_>) -> Result<Rejection, Malformed> {
    let reason = std::str::from_utf8(reader.span()?.of(reader.all())).map_err(|_| Malformed::Field("reason"))?;
    let reason = Arc::from(reason);
    Ok(Rejection { reason, first_seen: read_time(reader)?, last_seen: read_time(reader)? })
}

fn read_time(reader: &mut Reader<'_>) -> Result<SystemTime, Malformed> {
    let wrong = Malformed::Field("time");
    let earlier = reader.byte()? != 0;
    let seconds = reader.varint()?;
    let nanoseconds = u32::try_from(reader.varint()?).ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000).ok_or(wrong)?;
    let distance = Duration::new(seconds, nanoseconds);
    let epoch = SystemTime::UNIX_EPOCH;
    if earlier { epoch.checked_sub(distance) } else { epoch.checked_add(distance) }.ok_or(wrong)
}
