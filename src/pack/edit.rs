//! A chunk with some of its records changed, made from the chunk as it is: what stays is copied column by column, and no record is made of it.
//! Packing some thousand records from their values takes milliseconds, most of it to find again what the chunk has found already.
//!
//! Deliberately lacks: chunks of more or fewer keys than one chunk has, which are packed from their records (`build_noted`). That is done
//! now and then in any case, so that what is put in without a look at the rest never makes a chunk much longer than it need be.

use super::bytes::{put_fixed, put_text, put_varint};
use super::choose::{Rows, put_column};
use super::chunk::{Chunk, Packed};
use super::column::{Column, Row};
use super::encode::{addresses, flags, identity, literals, put_extra};
use super::meaning::{Meaning, kind_number};
use super::number::{Numbers, put_numbers};
use super::parts::Template;
use super::splice::{Piece, Plan, Splice, cut};
use super::template::holes;
use super::{CHECKSUM_LENGTH, FORM, RECORDS_JOINED_MAX, STORED_LENGTH_MAX, digest, flag};
use crate::model::{ClusterName, Kind, Record, SourceStamp};

/// The records from which a chunk is edited: a smaller one is packed from its records as quickly.
const EDITED_ROWS_MIN: usize = 64;

/// The edits for each chunk that is packed from its records instead, drawn by its checksum: the forms that were chosen for records that are
/// gone are then chosen anew. Packing takes five times as long as an edit (docs/develop/measurements.md §6), so that this adds a third to edits.
const EDITS_PER_BUILD: u8 = 16;

/// The records for each value that could have a template and has none: with more such values, there may be a template to be found.
const ROWS_PER_MISFIT: usize = 64;

/// A change of one row of a chunk.
#[derive(Debug, Clone)]
pub enum Edit<'a> {
    /// A record with a new key comes before a row, or behind the last.
    Insert {
        /// The row; as many as there are for one behind the last.
        before: usize,
        /// What comes.
        record: &'a Record,
        /// What is known of its meaning.
        meaning: Meaning,
    },
    /// A record of the same key takes its place.
    Replace {
        /// The row.
        row: usize,
        /// What takes its place.
        record: &'a Record,
        /// What is known of its meaning.
        meaning: Meaning,
    },
    /// It goes.
    Remove {
        /// The row.
        row: usize,
    },
    /// It has another revision, lease or mark.
    Restamp {
        /// The row.
        row: usize,
        /// What it has.
        source: SourceStamp,
    },
}

impl Edit<'_> {
    /// The row that it is about.
    #[must_use]
    pub const fn row(&self) -> usize {
        match self {
            Self::Insert { before: row, .. } | Self::Replace { row, .. } | Self::Remove { row } | Self::Restamp { row, .. } => *row,
        }
    }

    /// The sort key of edits: an insertion before a row comes before what becomes of the row.
    #[must_use]
    pub const fn order(&self) -> (usize, bool) {
        (self.row(), !matches!(self, Self::Insert { .. }))
    }
}

/// A record that is new in the chunk.
struct New<'a> {
    record: &'a Record,
    meaning: &'a Meaning,
    /// The number of its template, 0 for none.
    template: usize,
    /// What fills the holes of that.
    cells: Vec<&'a [u8]>,
}

/// The rows of the new chunk, as pieces of the old one and new records.
#[derive(Default)]
struct Layout {
    /// Every row that is not the old one.
    rows: Plan,
    /// Every row whose key is another: a record that is replaced keeps its name.
    names: Plan,
    /// Rows of the new chunk with another source.
    stamps: Vec<(usize, SourceStamp)>,
}

/// The rows of the new chunk that have one template, or none.
#[derive(Default)]
struct Share {
    plan: Plan,
    /// Which rows of the old chunk had it.
    old: Vec<usize>,
    /// Which of the new records have it.
    new: Vec<usize>,
}

/// An edit under way.
struct Editor<'a> {
    packed: &'a Packed,
    new: Vec<New<'a>>,
    /// Which of the new records have new keys.
    inserted: Vec<usize>,
    layout: Layout,
}

/// The chunk with some changes, which must be sorted by [`Edit::order`] and those before one row by key, one for each key. `None` where it
/// should be packed from its records.
pub(super) fn edited(chunk: &Chunk, edits: &[Edit<'_>]) -> Option<Chunk> {
    let packed = chunk.packed();
    let renewed =
        packed.bytes.len() < CHECKSUM_LENGTH || packed.bytes[packed.bytes.len() - CHECKSUM_LENGTH].is_multiple_of(EDITS_PER_BUILD);
    if renewed || packed.count < EDITED_ROWS_MIN || edits.len() * 2 > packed.count {
        return None;
    }
    let editor = Editor::of(packed, edits)?;
    let count = editor.layout.rows.count();
    if count == 0 || count > RECORDS_JOINED_MAX {
        return None;
    }
    let (shares, templates) = editor.shares();
    if editor.misfits(&shares) * ROWS_PER_MISFIT > count {
        return None;
    }
    let bytes = editor.write(&shares, &templates);
    (bytes.len() < STORED_LENGTH_MAX).then(|| Chunk::from_stored(bytes).expect("what was just written must read back"))
}

impl<'a> Editor<'a> {
    fn of(packed: &'a Packed, edits: &'a [Edit<'a>]) -> Option<Self> {
        let new = Vec::with_capacity(edits.len());
        let mut editor = Self { packed, new, inserted: Vec::new(), layout: Layout::default() };
        let mut next = 0;
        for edit in edits {
            let row = edit.row();
            if row < next || row > packed.count || (row == packed.count && !matches!(edit, Edit::Insert { .. })) {
                debug_assert!(false, "edits must be in order");
                return None;
            }
            editor.layout.rows.keep(next..row);
            editor.layout.names.keep(next..row);
            next = editor.take(edit);
        }
        editor.layout.rows.keep(next..packed.count);
        editor.layout.names.keep(next..packed.count);
        Some(editor)
    }

    /// Notes what becomes of a row; returns the next one.
    fn take(&mut self, edit: &'a Edit<'a>) -> usize {
        let layout = &mut self.layout;
        match edit {
            Edit::Insert { before, record, meaning } => {
                layout.rows.add(self.new.len());
                layout.names.add(self.inserted.len());
                self.inserted.push(self.new.len());
                self.add(record, meaning);
                *before
            }
            Edit::Replace { row, record, meaning } => {
                layout.rows.add(self.new.len());
                layout.names.keep(*row..row + 1);
                self.add(record, meaning);
                row + 1
            }
            Edit::Remove { row } => row + 1,
            Edit::Restamp { row, source } => {
                layout.stamps.push((layout.rows.count(), *source));
                layout.rows.keep(*row..row + 1);
                layout.names.keep(*row..row + 1);
                row + 1
            }
        }
    }

    fn add(&mut self, record: &'a Record, meaning: &'a Meaning) {
        let (value, mut ranges): (&'a [u8], _) = (&record.value, Vec::new());
        let (mut template, mut cells) = (0, Vec::new());
        if holes(value, &mut ranges).is_some() {
            let fits = |template: &Template| {
                template.columns.len() == ranges.len()
                    && literals(value, &ranges).eq(template.literals.iter().map(|literal| literal.of(&self.packed.bytes)))
            };
            if let Some(at) = self.packed.templates.iter().position(fits) {
                template = at + 1;
                cells.extend(ranges.into_iter().map(|range| &value[range]));
            }
        }
        if template == 0 {
            cells.push(value);
        }
        self.new.push(New { record, meaning, template, cells });
    }

    /// Which rows have which template, the first share those with none, and the template of each row. Templates without rows go.
    fn shares(&self) -> (Vec<(usize, Share)>, Vec<u64>) {
        let packed = self.packed;
        let old_templates = packed.numbers.template.all(&packed.bytes, packed.count);
        let template_of = |row: usize| usize::try_from(old_templates[row]).unwrap_or(0);
        let mut shares: Vec<Share> = (0..=packed.templates.len()).map(|_| Share::default()).collect();
        let mut ranks = Vec::with_capacity(packed.count);
        for row in 0..packed.count {
            let old = &mut shares[template_of(row)].old;
            ranks.push(old.len());
            old.push(row);
        }
        let mut templates = Vec::with_capacity(self.layout.rows.count());
        for piece in self.layout.rows.pieces() {
            match piece {
                Piece::Kept(rows) => {
                    for row in rows.clone() {
                        shares[template_of(row)].plan.keep(ranks[row]..ranks[row] + 1);
                        templates.push(template_of(row));
                    }
                }
                Piece::New(new) => {
                    let template = self.new[*new].template;
                    let share = &mut shares[template];
                    share.plan.add(share.new.len());
                    share.new.push(*new);
                    templates.push(template);
                }
            }
        }
        let shares: Vec<(usize, Share)> =
            shares.into_iter().enumerate().filter(|(template, share)| *template == 0 || share.plan.count() > 0).collect();
        let mut numbers = vec![0; packed.templates.len() + 1];
        shares.iter().enumerate().for_each(|(number, (template, _))| numbers[*template] = number as u64);
        (shares, templates.into_iter().map(|template| numbers[template]).collect())
    }

    /// How many rows have a value that could have a template and has none.
    fn misfits(&self, shares: &[(usize, Share)]) -> usize {
        let (mut value, mut ranges, mut count) = (Vec::new(), Vec::new(), 0);
        let verbatim = shares.iter().take(1).flat_map(|(_, share)| share.plan.pieces().iter().map(move |piece| (share, piece)));
        for (share, piece) in verbatim {
            match piece {
                Piece::Kept(rows) => {
                    for index in rows.clone() {
                        value.clear();
                        self.packed.verbatim.append(Row { bytes: &self.packed.bytes, name: &[], index }, &mut value);
                        count += usize::from(holes(&value, &mut ranges).is_some());
                    }
                }
                Piece::New(new) => count += usize::from(holes(&self.new[share.new[*new]].record.value, &mut ranges).is_some()),
            }
        }
        count
    }

    /// The bytes of the new chunk, in the order that `encode` has.
    fn write(&self, shares: &[(usize, Share)], templates: &[u64]) -> Vec<u8> {
        let (packed, rows) = (self.packed, &self.layout.rows);
        let mut out = Vec::with_capacity(packed.bytes.len() * 9 / 8);
        out.push(FORM);
        put_varint(&mut out, rows.count() as u64);
        let record = |new: usize| self.new[new].record;
        let last = self.numbers(packed.numbers.last_sequence, |new| record(new).last_sequence.0);
        put_fixed(&mut out, last.iter().copied().max().unwrap_or(0), 8);
        self.put_groups(&mut out);
        let names: Vec<&[u8]> = self.inserted.iter().map(|new| record(*new).key.name.as_bytes()).collect();
        self.put_plain(
            &mut out,
            &packed.names,
            packed.count,
            &Splice { bytes: &packed.bytes, plan: &self.layout.names, values: &names, names: &[] },
        );
        self.put_stamps(&mut out, &last);
        put_numbers(&mut out, templates);
        let values: Vec<Vec<u8>> = self.new.iter().map(|new| addresses(new.meaning)).collect();
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        self.put_plain(
            &mut out,
            &packed.addresses,
            packed.count,
            &Splice { bytes: &packed.bytes, plan: rows, values: &values, names: &[] },
        );
        put_varint(&mut out, shares.len() as u64 - 1);
        for (template, share) in shares.iter().skip(1) {
            self.put_template(&mut out, &packed.templates[template - 1], share);
        }
        for (_, share) in shares.iter().take(1) {
            let values: Vec<&[u8]> = share.new.iter().map(|new| self.new[*new].cells[0]).collect();
            let splice = Splice { bytes: &packed.bytes, plan: &share.plan, values: &values, names: &[] };
            self.put_plain(&mut out, &packed.verbatim, share.old.len(), &splice);
        }
        self.put_extras(&mut out);
        let checksum = crc32fast::hash(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    fn numbers(&self, old: Numbers, new: impl Fn(usize) -> u64) -> Vec<u64> {
        self.layout.rows.numbers(&self.packed.bytes, old, self.packed.count, new)
    }

    /// The numbers from the last sequence to the identity.
    fn put_stamps(&self, out: &mut Vec<u8>, last: &[u64]) {
        let numbers = &self.packed.numbers;
        let record = |new: usize| self.new[new].record;
        put_numbers(out, last);
        put_numbers(out, &self.numbers(numbers.lifetime, |new| record(new).last_sequence.0.wrapping_sub(record(new).create_sequence.0)));
        put_numbers(out, &self.numbers(numbers.version, |new| record(new).version));
        let mut revisions = self.numbers(numbers.revision, |new| record(new).source.mod_revision.0.cast_unsigned());
        let mut leases = self.numbers(numbers.lease, |new| record(new).source.lease.0.cast_unsigned());
        let mut all_flags = self.numbers(numbers.flags, |new| flags(record(new), self.new[new].meaning));
        for (row, source) in &self.layout.stamps {
            revisions[*row] = source.mod_revision.0.cast_unsigned();
            leases[*row] = source.lease.0.cast_unsigned();
            all_flags[*row] = all_flags[*row] & !flag::HELD | if source.held { flag::HELD } else { 0 };
        }
        put_numbers(out, &revisions);
        put_numbers(out, &leases);
        put_numbers(out, &self.numbers(numbers.digest, |new| digest(&record(new).value)));
        put_numbers(out, &all_flags);
        put_numbers(out, &self.numbers(numbers.identity, |new| identity(self.new[new].meaning)));
    }

    fn put_groups(&self, out: &mut Vec<u8>) {
        let mut groups: Vec<(Kind, &ClusterName, usize)> = Vec::new();
        let mut add = |kind: Kind, cluster: &'a ClusterName, count: usize| match groups.last_mut() {
            Some((last_kind, last, counted)) if *last_kind == kind && *last == cluster => *counted += count,
            Some(_) | None => groups.push((kind, cluster, count)),
        };
        for piece in self.layout.rows.pieces() {
            match piece {
                Piece::Kept(rows) => {
                    let mut start = rows.start;
                    while start < rows.end {
                        let group = self.packed.group(start);
                        let end = group.end.min(rows.end);
                        add(group.kind, &group.cluster, end - start);
                        start = end;
                    }
                }
                Piece::New(new) => {
                    let key = &self.new[*new].record.key;
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

    /// A column that stands alone, in the form that it has, or in a better one if that no longer fits.
    fn put_plain(&self, out: &mut Vec<u8>, old: &Column, rows: usize, splice: &Splice<'_, '_>) {
        if !splice.put(out, old, rows, |_, _| &[]) {
            let old_cell = |row, cell: &mut Vec<u8>| old.append(Row { bytes: &self.packed.bytes, name: &[], index: row }, cell);
            let (bytes, lengths) = cells(splice, old_cell);
            put_column(out, &Rows { values: &cut(&bytes, &lengths), names: &[] }, &[]);
        }
    }

    fn put_template(&self, out: &mut Vec<u8>, template: &Template, share: &Share) {
        put_varint(out, template.columns.len() as u64);
        template.literals.iter().for_each(|literal| put_text(out, literal.of(&self.packed.bytes)));
        let names: Vec<&[u8]> = share.new.iter().map(|new| self.new[*new].record.key.name.as_bytes()).collect();
        let earlier = |column: usize, new: usize| self.new[share.new[new]].cells[column];
        for (at, column) in template.columns.iter().enumerate() {
            let values: Vec<&[u8]> = share.new.iter().map(|new| self.new[*new].cells[at]).collect();
            let splice = Splice { bytes: &self.packed.bytes, plan: &share.plan, values: &values, names: &names };
            if !splice.put(out, column, share.old.len(), earlier) {
                self.put_chosen(out, template, at, share, &splice);
            }
        }
    }

    /// A column of a template in a form that is chosen anew.
    fn put_chosen(&self, out: &mut Vec<u8>, template: &Template, at: usize, share: &Share, splice: &Splice<'_, '_>) {
        let name = |rank: usize, name: &mut Vec<u8>| self.packed.append_name(share.old[rank], name);
        let (name_bytes, name_lengths) = cells(&Splice { values: splice.names, ..*splice }, name);
        let mut old_name = Vec::new();
        let old_cell = |rank: usize, cell: &mut Vec<u8>| {
            old_name.clear();
            name(rank, &mut old_name);
            template.append(at, Row { bytes: &self.packed.bytes, name: &old_name, index: rank }, cell);
        };
        let (bytes, lengths) = cells(splice, old_cell);
        put_column(out, &Rows { values: &cut(&bytes, &lengths), names: &cut(&name_bytes, &name_lengths) }, &[]);
    }

    fn put_extras(&self, out: &mut Vec<u8>) {
        for piece in self.layout.rows.pieces() {
            match piece {
                Piece::Kept(rows) => {
                    for extra in self.packed.extras_in(rows.clone()) {
                        put_extra(out, extra.good_value.map(|span| span.of(&self.packed.bytes)), extra.rejection.as_ref());
                    }
                }
                Piece::New(new) => {
                    let record = self.new[*new].record;
                    put_extra(out, record.good_value.as_deref(), record.rejection.as_ref());
                }
            }
        }
    }
}

/// All values of a column one after another, and how long each is.
fn cells(splice: &Splice<'_, '_>, mut old: impl FnMut(usize, &mut Vec<u8>)) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut lengths) = (Vec::new(), Vec::with_capacity(splice.plan.count()));
    for piece in splice.plan.pieces() {
        match piece {
            Piece::Kept(rows) => {
                for row in rows.clone() {
                    let start = bytes.len();
                    old(row, &mut bytes);
                    lengths.push(bytes.len() - start);
                }
            }
            Piece::New(new) => {
                bytes.extend_from_slice(splice.values[*new]);
                lengths.push(splice.values[*new].len());
            }
        }
    }
    (bytes, lengths)
}
