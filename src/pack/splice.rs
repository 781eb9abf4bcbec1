//! Writes a column with rows inserted, replaced or removed, in its current form.
//!
//! Unchanged rows are copied without inspecting each value. If the form no longer fits, the edit
//! chooses another (`form_choice`).

use std::ops::Range;

use super::byte_reader::{common_prefix_length, put_fixed, put_text, put_varint, width_of};
use super::column::{
    CONSTANT, Column, ColumnForm, DECIMAL, IPV4, NAME, NAME_HEAD, NAME_TAIL, SAME, SPLIT, TABLE, TEXTS, TextList, TextTable, UUID,
    name_head, name_tail, parse_decimal, parse_ipv4, parse_uuid,
};
use super::form_choice::{ROWS_PER_EXCEPTION, TextMap, put_texts, split_parts};
use super::number_column::{NumberColumn, put_numbers};

/// Minimum number of new values to check for repetition.
const REPEATS_MIN: usize = 8;

/// A part of a new column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SplicePart {
    /// Rows of the old column.
    Kept(Range<usize>),
    /// A new value, as an index into the new values.
    New(usize),
}

#[derive(Debug, Clone, Default)]
pub(super) struct SplicePlan {
    parts: Vec<SplicePart>,
    count: usize,
}

/// A new column in terms of an old one.
pub(super) struct Splice<'s, 'a> {
    /// Bytes of the old chunk.
    pub(super) bytes: &'a [u8],
    pub(super) plan: &'s SplicePlan,
    pub(super) values: &'s [&'a [u8]],
    /// Name in the key of each new value. Empty if the column does not depend on names.
    pub(super) names: &'s [&'a [u8]],
}

/// Rows that do not fit the form, with their values.
type Exceptions<'a> = Vec<(usize, &'a [u8])>;

impl SplicePlan {
    /// Appends rows of the old column.
    pub(super) fn keep(&mut self, rows: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        self.count += rows.len();
        match self.parts.last_mut() {
            Some(SplicePart::Kept(last)) if last.end == rows.start => last.end = rows.end,
            Some(_) | None => self.parts.push(SplicePart::Kept(rows)),
        }
    }

    /// Appends a new row.
    pub(super) fn add(&mut self, new: usize) {
        self.count += 1;
        self.parts.push(SplicePart::New(new));
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn parts(&self) -> &[SplicePart] {
        &self.parts
    }

    /// Returns the numbers of the new column. `rows` is the number of rows of the old one.
    pub(super) fn numbers(&self, bytes: &[u8], old: NumberColumn, rows: usize, new: impl Fn(usize) -> u64) -> Vec<u64> {
        let old = old.all(bytes, rows);
        let mut numbers = Vec::with_capacity(self.count);
        for part in &self.parts {
            match part {
                SplicePart::Kept(rows) => numbers.extend_from_slice(&old[rows.clone()]),
                SplicePart::New(index) => numbers.push(new(*index)),
            }
        }
        numbers
    }
}

impl<'a> Splice<'_, 'a> {
    /// Appends the new column in the form of the old one, which had `rows` rows. Returns `false`
    /// and appends nothing if the form does not fit. `earlier` returns the value of a new row in an
    /// earlier column of the template.
    pub(super) fn put(&self, out: &mut Vec<u8>, old: &Column, rows: usize, earlier: impl Fn(usize, usize) -> &'a [u8]) -> bool {
        let length = out.len();
        let exceptions = self.put_body(out, old, rows, earlier);
        let Some(exceptions) = exceptions else {
            out.truncate(length);
            return false;
        };
        put_varint(out, exceptions.len() as u64);
        for (row, value) in exceptions {
            put_varint(out, row as u64);
            put_text(out, value);
        }
        true
    }

    fn put_body(&self, out: &mut Vec<u8>, old: &Column, rows: usize, earlier: impl Fn(usize, usize) -> &'a [u8]) -> Option<Exceptions<'a>> {
        let value = |new: usize| self.values[new];
        let name = |new: usize| self.names.get(new).copied();
        Some(match old.form {
            ColumnForm::Constant(span) => {
                let text = span.slice(self.bytes);
                let exceptions = self.put_form_number(out, CONSTANT, old, |new| value(new) == text)?;
                put_text(out, text);
                exceptions
            }
            ColumnForm::Name => self.put_form_number(out, NAME, old, |new| name(new) == Some(value(new)))?,
            ColumnForm::NameHead => self.put_form_number(out, NAME_HEAD, old, |new| name(new).and_then(name_head) == Some(value(new)))?,
            ColumnForm::NameTail => self.put_form_number(out, NAME_TAIL, old, |new| name(new).and_then(name_tail) == Some(value(new)))?,
            ColumnForm::Same(column) => {
                let exceptions = self.put_form_number(out, SAME, old, |new| value(new) == earlier(column as usize, new))?;
                put_varint(out, u64::from(column));
                exceptions
            }
            ColumnForm::Decimal(numbers) => self.put_decimal(out, old, numbers, rows)?,
            ColumnForm::Ipv4(start) => {
                self.put_arrays(out, (IPV4, start), old, |value| parse_ipv4(value).map(|ip| ip.to_bits().to_le_bytes()))?
            }
            ColumnForm::Uuid(start) => self.put_arrays(out, (UUID, start), old, parse_uuid)?,
            ColumnForm::Table(table) => {
                out.push(TABLE);
                // with more distinct texts, another form is shorter
                let distinct = self.put_table(out, table, value);
                (distinct * 2 <= self.plan.count).then(Vec::new)?
            }
            ColumnForm::Split(..) | ColumnForm::Texts(_) if self.repeats() => return None,
            ColumnForm::Split(heads, tails) => {
                let parts = |new| split_parts(value(new)).unwrap_or_default();
                let exceptions = self.put_form_number(out, SPLIT, old, |new| split_parts(value(new)).is_some())?;
                self.put_table(out, heads, |new| parts(new).0);
                self.put_texts(out, tails, |new| parts(new).1);
                exceptions
            }
            ColumnForm::Texts(texts) => {
                out.push(TEXTS);
                self.put_texts(out, texts, value);
                Vec::new()
            }
        })
    }

    /// Returns `true` if the new values repeat, for instance because all rows get the same value.
    /// Then another form may need no text per row.
    fn repeats(&self) -> bool {
        let distinct: TextMap<'_, ()> = self.values.iter().map(|value| (*value, ())).collect();
        self.values.len() >= REPEATS_MIN && distinct.len() * 4 <= self.values.len()
    }

    /// Returns the remaining old exceptions and the new values that do not fit, or `None` if there
    /// are too many.
    fn exceptions(&self, old: &Column, fits: impl Fn(usize) -> bool) -> Option<Exceptions<'a>> {
        let (mut row, mut exceptions) = (0, Vec::new());
        for part in &self.plan.parts {
            match part {
                SplicePart::Kept(rows) => {
                    let within = old.exceptions_in(rows.clone());
                    exceptions.extend(
                        within.iter().map(|(exception_row, span)| (row + *exception_row as usize - rows.start, span.slice(self.bytes))),
                    );
                    row += rows.len();
                }
                SplicePart::New(new) => {
                    if !fits(*new) {
                        exceptions.push((row, self.values[*new]));
                    }
                    row += 1;
                }
            }
        }
        (exceptions.len() * ROWS_PER_EXCEPTION <= self.plan.count).then_some(exceptions)
    }

    /// Appends the number of the form and returns the exceptions. Appends nothing if there are too
    /// many.
    fn put_form_number(&self, out: &mut Vec<u8>, form: u8, old: &Column, fits: impl Fn(usize) -> bool) -> Option<Exceptions<'a>> {
        let exceptions = self.exceptions(old, fits)?;
        out.push(form);
        Some(exceptions)
    }

    fn put_decimal(&self, out: &mut Vec<u8>, old: &Column, numbers: NumberColumn, rows: usize) -> Option<Exceptions<'a>> {
        let parsed: Vec<Option<u64>> = self.values.iter().map(|value| parse_decimal(value)).collect();
        let exceptions = self.put_form_number(out, DECIMAL, old, |new| parsed[new].is_some())?;
        // the filler is one of the values, so that it does not widen the column
        let filler = numbers.get(self.bytes, 0);
        put_numbers(out, &self.plan.numbers(self.bytes, numbers, rows, |new| parsed[new].unwrap_or(filler)));
        Some(exceptions)
    }

    /// Appends a column of values with a fixed length. The old values begin at `start`.
    fn put_arrays<const LENGTH: usize>(
        &self,
        out: &mut Vec<u8>,
        (form, start): (u8, u32),
        old: &Column,
        parse: impl Fn(&[u8]) -> Option<[u8; LENGTH]>,
    ) -> Option<Exceptions<'a>> {
        let parsed: Vec<Option<[u8; LENGTH]>> = self.values.iter().map(|value| parse(value)).collect();
        let exceptions = self.put_form_number(out, form, old, |new| parsed[new].is_some())?;
        let old = self.bytes.get(start as usize..).unwrap_or_default();
        for part in &self.plan.parts {
            match part {
                SplicePart::Kept(rows) => out.extend_from_slice(&old[rows.start * LENGTH..rows.end * LENGTH]),
                SplicePart::New(new) => out.extend_from_slice(&parsed[*new].unwrap_or([0; LENGTH])),
            }
        }
        Some(exceptions)
    }

    /// Appends the texts that are still used, the new texts, and the index of each row. Returns the
    /// number of texts.
    fn put_table(&self, out: &mut Vec<u8>, table: TextTable, text_of: impl Fn(usize) -> &'a [u8]) -> usize {
        let (texts, prefix) = (table.texts, table.texts.prefix.slice(self.bytes));
        let ends = texts.all_ends(self.bytes);
        let suffix = |entry: usize| texts.between(self.bytes, &ends, entry..entry + 1);
        let known: TextMap<'_, usize> = if self.values.is_empty() {
            TextMap::default()
        } else {
            (0..texts.count as usize).map(|entry| (suffix(entry), entry)).collect()
        };
        let mut new_indices: Vec<Option<usize>> = vec![None; texts.count as usize];
        let (mut added_texts, mut rows) = (TextMap::<usize>::default(), Vec::with_capacity(self.plan.count));
        let (mut bytes, mut lengths) = (Vec::with_capacity(texts.bytes.length() * 2), Vec::new());
        let mut keep_text = |entry: usize, bytes: &mut Vec<u8>, lengths: &mut Vec<usize>| {
            *new_indices[entry].get_or_insert_with(|| {
                bytes.extend_from_slice(prefix);
                bytes.extend_from_slice(suffix(entry));
                lengths.push(prefix.len() + suffix(entry).len());
                lengths.len() - 1
            })
        };
        for part in &self.plan.parts {
            match part {
                SplicePart::Kept(kept) => {
                    rows.extend(kept.clone().map(|row| keep_text(table.text_index(self.bytes, row), &mut bytes, &mut lengths)))
                }
                SplicePart::New(new) => {
                    let text = text_of(*new);
                    let entry = text.strip_prefix(prefix).and_then(|tail| known.get(tail));
                    rows.push(match entry {
                        Some(entry) => keep_text(*entry, &mut bytes, &mut lengths),
                        None => *added_texts.entry(text).or_insert_with(|| {
                            bytes.extend_from_slice(text);
                            lengths.push(text.len());
                            lengths.len() - 1
                        }),
                    });
                }
            }
        }
        put_texts(out, &cut(&bytes, &lengths));
        let width = width_of(lengths.len().saturating_sub(1) as u64);
        put_fixed(out, width as u64, 1);
        rows.iter().for_each(|row| put_fixed(out, *row as u64, width));
        lengths.len()
    }

    fn put_texts(&self, out: &mut Vec<u8>, texts: TextList, text_of: impl Fn(usize) -> &'a [u8]) {
        let (prefix, ends) = (texts.prefix.slice(self.bytes), texts.all_ends(self.bytes));
        let new = |part: &SplicePart| if let SplicePart::New(new) = part { Some(text_of(*new)) } else { None };
        let new_prefix = self.plan.parts.iter().filter_map(new).fold(prefix, |prefix, text| &prefix[..common_prefix_length(prefix, text)]);
        // the part of the old prefix that is no longer shared precedes each old text
        let lost_prefix = &prefix[new_prefix.len()..];
        let total: usize = self
            .plan
            .parts
            .iter()
            .map(|part| match part {
                SplicePart::Kept(rows) => (ends[rows.end] - ends[rows.start]) as usize + rows.len() * lost_prefix.len(),
                SplicePart::New(new) => text_of(*new).len() - new_prefix.len(),
            })
            .sum();
        put_varint(out, self.plan.count as u64);
        put_text(out, new_prefix);
        let width = width_of(total as u64);
        put_fixed(out, width as u64, 1);
        let mut end = 0;
        for part in &self.plan.parts {
            match part {
                SplicePart::Kept(rows) => {
                    let start = end;
                    for (index, row) in rows.clone().enumerate() {
                        end = start + (ends[row + 1] - ends[rows.start]) as usize + (index + 1) * lost_prefix.len();
                        put_fixed(out, end as u64, width);
                    }
                }
                SplicePart::New(new) => {
                    end += text_of(*new).len() - new_prefix.len();
                    put_fixed(out, end as u64, width);
                }
            }
        }
        for part in &self.plan.parts {
            match part {
                SplicePart::Kept(rows) if lost_prefix.is_empty() => out.extend_from_slice(texts.between(self.bytes, &ends, rows.clone())),
                SplicePart::Kept(rows) => rows.clone().for_each(|row| {
                    out.extend_from_slice(lost_prefix);
                    out.extend_from_slice(texts.between(self.bytes, &ends, row..row + 1));
                }),
                SplicePart::New(new) => out.extend_from_slice(&text_of(*new)[new_prefix.len()..]),
            }
        }
    }
}

/// Splits bytes into consecutive texts of the given lengths.
pub(super) fn cut<'b>(bytes: &'b [u8], lengths: &[usize]) -> Vec<&'b [u8]> {
    let mut rest = bytes;
    let mut next = |length: &usize| {
        let (text, tail) = rest.split_at(*length);
        rest = tail;
        text
    };
    lengths.iter().map(&mut next).collect()
}
