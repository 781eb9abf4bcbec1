//! Edits of a packed chunk: unchanged rows are copied column by column, without decoding their
//! records.
//!
//! Packing a thousand records takes milliseconds, mostly to find the templates and forms that the
//! chunk already has. An edit reuses them and never splits or joins chunks. Now and then,
//! [`edit()`] requests packing from the records (`build_with_fields`) instead, because reused forms
//! gradually become longer than necessary.

use super::byte_reader::{put_fixed, put_text, put_varint};
use super::chunk::{Chunk, ChunkData};
use super::column::{Column, RowInput};
use super::encode::{addresses_or_service, flags, identity, literals, put_extra};
use super::form_choice::{ColumnValues, put_column};
use super::indexed_fields::{IndexedFields, kind_number};
use super::number_column::{NumberColumn, put_numbers};
use super::sections::Template;
use super::splice::{Splice, SplicePart, SplicePlan, cut};
use super::template::holes;
use super::{CHECKSUM_LENGTH, FORMAT_VERSION, RECORDS_JOINED_MAX, STORED_LENGTH_MAX, digest, flag};
use crate::model::{ClusterName, Kind, Record, SourceStamp};

/// Minimum number of records for an edit. Packing a smaller chunk from its records is just as fast.
const EDITED_ROWS_MIN: usize = 64;

/// One in this many edits packs the chunk from its records instead, chosen by the chunk's checksum.
/// This replaces forms that were chosen for deleted records. Packing takes five times as long as an
/// edit (docs/develop/measurements.md §6), so it adds a third to the cost of edits.
const EDITS_PER_BUILD: u8 = 16;

/// An edit is refused if more than one row in this many could have a template but has none. A new
/// template may then be worthwhile.
const ROWS_PER_MISFIT: usize = 64;

/// A change of one row of a chunk.
#[derive(Debug, Clone)]
pub enum RowEdit<'a> {
    /// Inserts a record with a new key.
    Insert {
        /// Row before which the record is inserted, or the number of rows to append it.
        before: usize,
        /// Record to insert.
        record: &'a Record,
        /// Indexed fields of the record, if known.
        fields: IndexedFields,
    },
    /// Replaces a row by a record with the same key.
    Replace {
        /// Row to replace.
        row: usize,
        /// New record.
        record: &'a Record,
        /// Indexed fields of the record, if known.
        fields: IndexedFields,
    },
    /// Removes a row.
    Remove {
        /// Row to remove.
        row: usize,
    },
    /// Changes the revision, lease or held mark of a row.
    Restamp {
        /// Row to change.
        row: usize,
        /// New revision, lease and held mark.
        source: SourceStamp,
    },
}

impl RowEdit<'_> {
    /// Returns the row that the edit refers to.
    #[must_use]
    pub const fn row(&self) -> usize {
        match self {
            Self::Insert { before: row, .. } | Self::Replace { row, .. } | Self::Remove { row } | Self::Restamp { row, .. } => *row,
        }
    }

    /// Returns the sort key of edits: an insertion before a row precedes other edits of the row.
    #[must_use]
    pub const fn order(&self) -> (usize, bool) {
        (self.row(), !matches!(self, Self::Insert { .. }))
    }
}

/// A record to insert or to replace a row with.
struct NewRecord<'a> {
    record: &'a Record,
    fields: &'a IndexedFields,
    /// Number of its template from 1, or 0 for none.
    template: usize,
    /// Texts in the holes of the template, or the whole value.
    cells: Vec<&'a [u8]>,
}

/// Rows of the new chunk, as parts of the old chunk and new records.
#[derive(Default)]
struct EditLayout {
    /// Rows of the new chunk. A replaced row is new.
    rows: SplicePlan,
    /// Names of the new chunk. A replaced row keeps its name.
    names: SplicePlan,
    /// Rows of the new chunk with another revision, lease or held mark.
    stamps: Vec<(usize, SourceStamp)>,
}

/// Rows of the new chunk with the same template, or without one.
#[derive(Default)]
struct TemplateRows {
    plan: SplicePlan,
    /// Rows of the old chunk with the template.
    old_rows: Vec<usize>,
    /// New records with the template, as indices into `ChunkEditor::new_records`.
    new_records: Vec<usize>,
}

/// An edit in progress.
struct ChunkEditor<'a> {
    packed: &'a ChunkData,
    new_records: Vec<NewRecord<'a>>,
    /// Inserted records, as indices into `new_records`.
    inserted: Vec<usize>,
    layout: EditLayout,
}

/// Applies edits to a chunk without decoding every row. They must be sorted by [`RowEdit::order`],
/// then by key, with at most one per key. Returns `None` if the chunk should be packed from its
/// records instead: if too much of it changes, if it would become too large, and once in sixteen
/// edits, which keeps it about as short as a freshly packed one.
#[must_use]
pub fn edit(chunk: &Chunk, edits: &[RowEdit<'_>]) -> Option<Chunk> {
    let packed = &*chunk.0;
    let is_build_due =
        packed.bytes.len() < CHECKSUM_LENGTH || packed.bytes[packed.bytes.len() - CHECKSUM_LENGTH].is_multiple_of(EDITS_PER_BUILD);
    if is_build_due || packed.count < EDITED_ROWS_MIN || edits.len() * 2 > packed.count {
        return None;
    }
    let editor = ChunkEditor::new(packed, edits)?;
    let count = editor.layout.rows.count();
    if count == 0 || count > RECORDS_JOINED_MAX {
        return None;
    }
    let (by_template, templates) = editor.rows_by_template();
    if editor.count_misfits(&by_template) * ROWS_PER_MISFIT > count {
        return None;
    }
    let bytes = editor.write(&by_template, &templates);
    (bytes.len() < STORED_LENGTH_MAX).then(|| Chunk::from_stored(bytes).expect("an encoded chunk must be readable"))
}

impl<'a> ChunkEditor<'a> {
    fn new(packed: &'a ChunkData, edits: &'a [RowEdit<'a>]) -> Option<Self> {
        let new_records = Vec::with_capacity(edits.len());
        let mut editor = Self { packed, new_records, inserted: Vec::new(), layout: EditLayout::default() };
        let mut next = 0;
        for edit in edits {
            let row = edit.row();
            if row < next || row > packed.count || (row == packed.count && !matches!(edit, RowEdit::Insert { .. })) {
                debug_assert!(false, "edits must be in order");
                return None;
            }
            editor.layout.rows.keep(next..row);
            editor.layout.names.keep(next..row);
            next = editor.apply(edit);
        }
        editor.layout.rows.keep(next..packed.count);
        editor.layout.names.keep(next..packed.count);
        Some(editor)
    }

    /// Adds an edit to the layout and returns the next row of the old chunk.
    fn apply(&mut self, edit: &'a RowEdit<'a>) -> usize {
        let layout = &mut self.layout;
        match edit {
            RowEdit::Insert { before, record, fields } => {
                layout.rows.add(self.new_records.len());
                layout.names.add(self.inserted.len());
                self.inserted.push(self.new_records.len());
                self.add_record(record, fields);
                *before
            }
            RowEdit::Replace { row, record, fields } => {
                layout.rows.add(self.new_records.len());
                layout.names.keep(*row..row + 1);
                self.add_record(record, fields);
                row + 1
            }
            RowEdit::Remove { row } => row + 1,
            RowEdit::Restamp { row, source } => {
                layout.stamps.push((layout.rows.count(), *source));
                layout.rows.keep(*row..row + 1);
                layout.names.keep(*row..row + 1);
                row + 1
            }
        }
    }

    fn add_record(&mut self, record: &'a Record, fields: &'a IndexedFields) {
        let (value, mut ranges): (&'a [u8], _) = (&record.value, Vec::new());
        let (mut template, mut cells) = (0, Vec::new());
        if holes(value, &mut ranges).is_some() {
            let fits = |template: &Template| {
                template.columns.len() == ranges.len()
                    && literals(value, &ranges).eq(template.literals.iter().map(|literal| literal.slice(&self.packed.bytes)))
            };
            if let Some(index) = self.packed.templates.iter().position(fits) {
                template = index + 1;
                cells.extend(ranges.into_iter().map(|range| &value[range]));
            }
        }
        if template == 0 {
            cells.push(value);
        }
        self.new_records.push(NewRecord { record, fields, template, cells });
    }

    /// Groups the rows by template, with those without a template first, and returns the new
    /// template number of each row. Templates without rows are dropped.
    fn rows_by_template(&self) -> (Vec<(usize, TemplateRows)>, Vec<u64>) {
        let packed = self.packed;
        let old_templates = packed.numbers.template.all(&packed.bytes, packed.count);
        let template_of = |row: usize| usize::try_from(old_templates[row]).unwrap_or(0);
        let mut by_template: Vec<TemplateRows> = (0..=packed.templates.len()).map(|_| TemplateRows::default()).collect();
        let mut ranks = Vec::with_capacity(packed.count);
        for row in 0..packed.count {
            let old = &mut by_template[template_of(row)].old_rows;
            ranks.push(old.len());
            old.push(row);
        }
        let mut templates = Vec::with_capacity(self.layout.rows.count());
        for part in self.layout.rows.parts() {
            match part {
                SplicePart::Kept(rows) => {
                    for row in rows.clone() {
                        by_template[template_of(row)].plan.keep(ranks[row]..ranks[row] + 1);
                        templates.push(template_of(row));
                    }
                }
                SplicePart::New(new) => {
                    let template = self.new_records[*new].template;
                    let template_rows = &mut by_template[template];
                    template_rows.plan.add(template_rows.new_records.len());
                    template_rows.new_records.push(*new);
                    templates.push(template);
                }
            }
        }
        let by_template: Vec<(usize, TemplateRows)> = by_template
            .into_iter()
            .enumerate()
            .filter(|(template, template_rows)| *template == 0 || template_rows.plan.count() > 0)
            .collect();
        let mut numbers = vec![0; packed.templates.len() + 1];
        by_template.iter().enumerate().for_each(|(number, (template, _))| numbers[*template] = number as u64);
        (by_template, templates.into_iter().map(|template| numbers[template]).collect())
    }

    /// Counts the rows without a template whose value could have one.
    fn count_misfits(&self, by_template: &[(usize, TemplateRows)]) -> usize {
        let (mut value, mut ranges, mut count) = (Vec::new(), Vec::new(), 0);
        let verbatim = by_template
            .iter()
            .take(1)
            .flat_map(|(_, template_rows)| template_rows.plan.parts().iter().map(move |part| (template_rows, part)));
        for (template_rows, part) in verbatim {
            match part {
                SplicePart::Kept(rows) => {
                    for index in rows.clone() {
                        value.clear();
                        self.packed.verbatim.append(RowInput { bytes: &self.packed.bytes, name: &[], index }, &mut value);
                        count += usize::from(holes(&value, &mut ranges).is_some());
                    }
                }
                SplicePart::New(new) => {
                    count += usize::from(holes(&self.new_records[template_rows.new_records[*new]].record.value, &mut ranges).is_some())
                }
            }
        }
        count
    }

    /// Writes the new chunk in the order of `encode`.
    fn write(&self, by_template: &[(usize, TemplateRows)], templates: &[u64]) -> Vec<u8> {
        let (packed, rows) = (self.packed, &self.layout.rows);
        let mut out = Vec::with_capacity(packed.bytes.len() * 9 / 8);
        out.push(FORMAT_VERSION);
        put_varint(&mut out, rows.count() as u64);
        let record = |new: usize| self.new_records[new].record;
        let last = self.numbers(packed.numbers.last_sequence, |new| record(new).last_sequence.0);
        put_fixed(&mut out, last.iter().copied().max().unwrap_or(0), 8);
        self.put_groups(&mut out);
        let names: Vec<&[u8]> = self.inserted.iter().map(|new| record(*new).key.name.as_bytes()).collect();
        self.put_plain(&mut out, &packed.names, packed.count, &self.layout.names, &names);
        self.put_number_columns(&mut out, &last);
        put_numbers(&mut out, templates);
        let values: Vec<Vec<u8>> = self.new_records.iter().map(|new| addresses_or_service(new.fields)).collect();
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        self.put_plain(&mut out, &packed.addresses_or_service, packed.count, rows, &values);
        put_varint(&mut out, by_template.len() as u64 - 1);
        for (template, template_rows) in by_template.iter().skip(1) {
            self.put_template(&mut out, &packed.templates[template - 1], template_rows);
        }
        for (_, template_rows) in by_template.iter().take(1) {
            let values: Vec<&[u8]> = template_rows.new_records.iter().map(|new| self.new_records[*new].cells[0]).collect();
            self.put_plain(&mut out, &packed.verbatim, template_rows.old_rows.len(), &template_rows.plan, &values);
        }
        self.put_extras(&mut out);
        let checksum = crc32fast::hash(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    fn numbers(&self, old: NumberColumn, new: impl Fn(usize) -> u64) -> Vec<u64> {
        self.layout.rows.numbers(&self.packed.bytes, old, self.packed.count, new)
    }

    /// Appends the columns of numbers from the last sequence to the identity.
    fn put_number_columns(&self, out: &mut Vec<u8>, last: &[u64]) {
        let numbers = &self.packed.numbers;
        let record = |new: usize| self.new_records[new].record;
        put_numbers(out, last);
        put_numbers(out, &self.numbers(numbers.lifetime, |new| record(new).last_sequence.0.wrapping_sub(record(new).create_sequence.0)));
        put_numbers(out, &self.numbers(numbers.version, |new| record(new).version));
        let mut revisions = self.numbers(numbers.revision, |new| record(new).source.mod_revision.0.cast_unsigned());
        let mut leases = self.numbers(numbers.lease, |new| record(new).source.lease.0.cast_unsigned());
        let mut all_flags = self.numbers(numbers.flags, |new| flags(record(new), self.new_records[new].fields));
        for (row, source) in &self.layout.stamps {
            revisions[*row] = source.mod_revision.0.cast_unsigned();
            leases[*row] = source.lease.0.cast_unsigned();
            all_flags[*row] = all_flags[*row] & !flag::HELD | if source.held { flag::HELD } else { 0 };
        }
        put_numbers(out, &revisions);
        put_numbers(out, &leases);
        put_numbers(out, &self.numbers(numbers.digest, |new| digest(&record(new).value)));
        put_numbers(out, &all_flags);
        put_numbers(out, &self.numbers(numbers.identity, |new| identity(self.new_records[new].fields)));
    }

    fn put_groups(&self, out: &mut Vec<u8>) {
        let mut groups: Vec<(Kind, &ClusterName, usize)> = Vec::new();
        let mut add = |kind: Kind, cluster: &'a ClusterName, count: usize| match groups.last_mut() {
            Some((last_kind, last, counted)) if *last_kind == kind && *last == cluster => *counted += count,
            Some(_) | None => groups.push((kind, cluster, count)),
        };
        for part in self.layout.rows.parts() {
            match part {
                SplicePart::Kept(rows) => {
                    let mut start = rows.start;
                    while start < rows.end {
                        let group = self.packed.group(start);
                        let end = group.end.min(rows.end);
                        add(group.kind, &group.cluster, end - start);
                        start = end;
                    }
                }
                SplicePart::New(new) => {
                    let key = &self.new_records[*new].record.key;
                    add(key.kind, &key.cluster, 1);
                }
            }
        }
        put_varint(out, groups.len() as u64);
        for (kind, cluster, count) in groups {
            out.push(kind_number(kind));
            put_text(out, cluster.as_str().as_bytes());
            put_varint(out, count as u64);
        }
    }

    /// Appends a column outside of templates. Keeps the form of the column, or chooses another one
    /// if the form no longer fits.
    fn put_plain(&self, out: &mut Vec<u8>, old: &Column, rows: usize, plan: &SplicePlan, values: &[&[u8]]) {
        let splice = &Splice { bytes: &self.packed.bytes, plan, values, names: &[] };
        if !splice.put(out, old, rows, |_, _| &[]) {
            let old_cell = |row, cell: &mut Vec<u8>| old.append(RowInput { bytes: &self.packed.bytes, name: &[], index: row }, cell);
            let (bytes, lengths) = concat_values(splice, old_cell);
            put_column(out, &ColumnValues { values: &cut(&bytes, &lengths), names: &[] }, &[]);
        }
    }

    fn put_template(&self, out: &mut Vec<u8>, template: &Template, template_rows: &TemplateRows) {
        put_varint(out, template.columns.len() as u64);
        template.literals.iter().for_each(|literal| put_text(out, literal.slice(&self.packed.bytes)));
        let names: Vec<&[u8]> = template_rows.new_records.iter().map(|new| self.new_records[*new].record.key.name.as_bytes()).collect();
        let earlier = |column: usize, new: usize| self.new_records[template_rows.new_records[new]].cells[column];
        for (hole, column) in template.columns.iter().enumerate() {
            let values: Vec<&[u8]> = template_rows.new_records.iter().map(|new| self.new_records[*new].cells[hole]).collect();
            let splice = Splice { bytes: &self.packed.bytes, plan: &template_rows.plan, values: &values, names: &names };
            if !splice.put(out, column, template_rows.old_rows.len(), earlier) {
                self.put_in_new_form(out, template, hole, template_rows, &splice);
            }
        }
    }

    /// Appends a column of a template in a newly chosen form.
    fn put_in_new_form(&self, out: &mut Vec<u8>, template: &Template, hole: usize, template_rows: &TemplateRows, splice: &Splice<'_, '_>) {
        let name = |rank: usize, name: &mut Vec<u8>| self.packed.append_name(template_rows.old_rows[rank], name);
        let (name_bytes, name_lengths) = concat_values(&Splice { values: splice.names, ..*splice }, name);
        let mut old_name = Vec::new();
        let old_cell = |rank: usize, cell: &mut Vec<u8>| {
            old_name.clear();
            name(rank, &mut old_name);
            template.append(hole, RowInput { bytes: &self.packed.bytes, name: &old_name, index: rank }, cell);
        };
        let (bytes, lengths) = concat_values(splice, old_cell);
        put_column(out, &ColumnValues { values: &cut(&bytes, &lengths), names: &cut(&name_bytes, &name_lengths) }, &[]);
    }

    fn put_extras(&self, out: &mut Vec<u8>) {
        for part in self.layout.rows.parts() {
            match part {
                SplicePart::Kept(rows) => {
                    for extra in self.packed.extras_in(rows.clone()) {
                        put_extra(out, extra.good_value.map(|span| span.slice(&self.packed.bytes)), extra.rejection.as_ref());
                    }
                }
                SplicePart::New(new) => {
                    let record = self.new_records[*new].record;
                    put_extra(out, record.good_value.as_deref(), record.rejection.as_ref());
                }
            }
        }
    }
}

/// Returns all values of a column back to back, and the length of each.
fn concat_values(splice: &Splice<'_, '_>, mut old: impl FnMut(usize, &mut Vec<u8>)) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut lengths) = (Vec::new(), Vec::with_capacity(splice.plan.count()));
    for part in splice.plan.parts() {
        match part {
            SplicePart::Kept(rows) => {
                for row in rows.clone() {
                    let start = bytes.len();
                    old(row, &mut bytes);
                    lengths.push(bytes.len() - start);
                }
            }
            SplicePart::New(new) => {
                bytes.extend_from_slice(splice.values[*new]);
                lengths.push(splice.values[*new].len());
            }
        }
    }
    (bytes, lengths)
}
