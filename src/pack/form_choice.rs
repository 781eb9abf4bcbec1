//! Chooses the form of a column and writes the column. The chosen form is the shortest one that
//! fits all rows, except for a few exceptions.

use std::collections::HashMap;

use super::byte_reader::{common_prefix_length, put_fixed, put_text, put_varint, width_of};
use super::column::{
    CONSTANT, DECIMAL, IPV4, NAME, NAME_HEAD, NAME_TAIL, SAME, SPLIT, TABLE, TEXTS, UUID, UUID_TEXT_LENGTH, name_head, name_tail,
    parse_decimal, parse_ipv4, parse_uuid,
};
use super::number_column::put_numbers;

/// Minimum number of rows per exception. With more exceptions another form is shorter, or the
/// column is a mixture.
pub(super) const ROWS_PER_EXCEPTION: usize = 8;

/// Number of rows on which a form is tried before it is tried on all.
const PROBED_ROWS: usize = 8;

/// Bytes of an exception besides its value: row and length.
const EXCEPTION_COST: usize = 4;

pub(super) struct ColumnValues<'a> {
    pub(super) values: &'a [&'a [u8]],
    /// Name in each row's key. Empty for the column of names itself.
    pub(super) names: &'a [&'a [u8]],
}

/// A form that fits: the values parsed for it, the rows that are exceptions, and its length in
/// bytes.
struct Candidate<'a> {
    body: ColumnBody<'a>,
    exceptions: Vec<usize>,
    cost: usize,
}

enum ColumnBody<'a> {
    Constant(&'a [u8]),
    WithoutBody(u8),
    Same(usize),
    Table(Dictionary<'a>),
    Decimal(Vec<u64>),
    Ipv4(Vec<u64>),
    Uuid(Vec<[u8; 16]>),
    Split(Dictionary<'a>, Vec<&'a [u8]>),
    Texts,
}

/// A dictionary: the distinct texts of a column in order of their first row, and the index of each
/// row's text.
struct Dictionary<'a> {
    texts: Vec<&'a [u8]>,
    rows: Vec<usize>,
}

/// A map for the texts of one chunk. Its hash is seeded and fast, but not cryptographic: even if
/// all texts of a chunk collide, they are at most 1,024.
pub(super) type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A map with short-lived byte strings as keys.
pub(super) type TextMap<'a, V> = FastMap<&'a [u8], V>;

/// Appends a column in its shortest form. `earlier` are the previous columns of the same template.
pub(super) fn put_column(out: &mut Vec<u8>, rows: &ColumnValues<'_>, earlier: &[Vec<&[u8]>]) {
    let chosen = choose_form(rows, earlier);
    put_body(out, rows, &chosen);
    put_varint(out, chosen.exceptions.len() as u64);
    for row in &chosen.exceptions {
        put_varint(out, *row as u64);
        put_text(out, rows.values[*row]);
    }
}

fn choose_form<'a>(rows: &ColumnValues<'a>, earlier: &[Vec<&[u8]>]) -> Candidate<'a> {
    let values = rows.values;
    let first = values.first().copied().unwrap_or_default();
    if let Some(exceptions) = find_exceptions(values.len(), |row| values[row] == first) {
        return candidate(rows, ColumnBody::Constant(first), exceptions, first.len());
    }
    if let Some(named) = try_name(rows) {
        return named;
    }
    if let Some(same) = try_same(rows, earlier) {
        return same;
    }
    let typed = [try_decimal(rows), try_ipv4(rows), try_uuid(rows)];
    let texts = [try_table(rows), try_split(rows)];
    let mut best = candidate(rows, ColumnBody::Texts, Vec::new(), texts_cost(values));
    for other in typed.into_iter().chain(texts).flatten() {
        if other.cost < best.cost {
            best = other;
        }
    }
    best
}

/// Returns the rows that do not fit, or `None` if there are too many.
fn find_exceptions(count: usize, fits: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
    let misfits = (0..count.min(PROBED_ROWS)).filter(|row| !fits(*row)).count();
    if misfits > PROBED_ROWS / 2 {
        return None;
    }
    let mut exceptions = Vec::new();
    for row in 0..count {
        if !fits(row) {
            exceptions.push(row);
            if exceptions.len() * ROWS_PER_EXCEPTION > count {
                return None;
            }
        }
    }
    Some(exceptions)
}

fn candidate<'a>(rows: &ColumnValues<'_>, body: ColumnBody<'a>, exceptions: Vec<usize>, cost: usize) -> Candidate<'a> {
    let cost = cost + exceptions.iter().map(|row| rows.values[*row].len() + EXCEPTION_COST).sum::<usize>();
    Candidate { body, exceptions, cost }
}

/// Returns the part of a name that a form copies, if the name has it.
type NamePart<'a> = fn(&'a [u8]) -> Option<&'a [u8]>;

/// Tries the forms that copy the name in the key, or its part before or after `/`. They need no
/// bytes.
fn try_name<'a>(rows: &ColumnValues<'a>) -> Option<Candidate<'a>> {
    if rows.names.is_empty() {
        return None;
    }
    let parts: [(u8, NamePart<'a>); 3] = [(NAME, Some), (NAME_HEAD, name_head), (NAME_TAIL, name_tail)];
    let (form, exceptions) = parts.into_iter().find_map(|(form, part)| {
        let has_part = |row: usize| rows.names.get(row).and_then(|name| part(name)) == Some(rows.values[row]);
        Some((form, find_exceptions(rows.values.len(), has_part)?))
    })?;
    Some(candidate(rows, ColumnBody::WithoutBody(form), exceptions, 0))
}

fn try_same<'a>(rows: &ColumnValues<'a>, earlier: &[Vec<&[u8]>]) -> Option<Candidate<'a>> {
    let equal = |column: &Vec<&[u8]>| find_exceptions(rows.values.len(), |row| column.get(row) == Some(&rows.values[row]));
    let (column, exceptions) = earlier.iter().enumerate().find_map(|(index, column)| Some((index, equal(column)?)))?;
    Some(candidate(rows, ColumnBody::Same(column), exceptions, 1))
}

/// Parses the value of each row. A row that does not parse gets a filler and is returned as an
/// exception. Returns `None` if there are too many exceptions.
fn parse_rows<T: Clone>(rows: &ColumnValues<'_>, parse: impl Fn(&[u8]) -> Option<T>) -> Option<(Vec<T>, Vec<usize>)> {
    let values = rows.values;
    if values.iter().take(PROBED_ROWS).filter(|value| parse(value).is_none()).count() > PROBED_ROWS / 2 {
        return None;
    }
    // the filler is one of the values, so that it does not widen the column
    let filler = values.iter().find_map(|value| parse(value))?;
    let (mut parsed_rows, mut exceptions) = (Vec::with_capacity(values.len()), Vec::new());
    for (row, value) in values.iter().enumerate() {
        let parsed = parse(value);
        if parsed.is_none() {
            exceptions.push(row);
        }
        parsed_rows.push(parsed.unwrap_or_else(|| filler.clone()));
        if exceptions.len() * ROWS_PER_EXCEPTION > values.len() {
            return None;
        }
    }
    Some((parsed_rows, exceptions))
}

fn try_decimal<'a>(rows: &ColumnValues<'a>) -> Option<Candidate<'a>> {
    let (numbers, exceptions) = parse_rows(rows, parse_decimal)?;
    let range = numbers.iter().max()? - numbers.iter().min()?;
    let cost = numbers.len() * width_of(range);
    Some(candidate(rows, ColumnBody::Decimal(numbers), exceptions, cost))
}

fn try_ipv4<'a>(rows: &ColumnValues<'a>) -> Option<Candidate<'a>> {
    let (addresses, exceptions) = parse_rows(rows, |text| parse_ipv4(text).map(|ip| u64::from(ip.to_bits())))?;
    let cost = addresses.len() * 4;
    Some(candidate(rows, ColumnBody::Ipv4(addresses), exceptions, cost))
}

fn try_uuid<'a>(rows: &ColumnValues<'a>) -> Option<Candidate<'a>> {
    if rows.values.first().is_none_or(|first| first.len() != UUID_TEXT_LENGTH) {
        return None;
    }
    let (uuids, exceptions) = parse_rows(rows, parse_uuid)?;
    let cost = uuids.len() * 16;
    Some(candidate(rows, ColumnBody::Uuid(uuids), exceptions, cost))
}

fn try_table<'a>(rows: &ColumnValues<'a>) -> Option<Candidate<'a>> {
    let dictionary = Dictionary::new(rows.values.iter().copied());
    if dictionary.texts.len() * 2 > rows.values.len() {
        return None;
    }
    let cost = dictionary.cost();
    Some(candidate(rows, ColumnBody::Table(dictionary), Vec::new(), cost))
}

/// Tries to split at the last dash. The name of a pod is the name of its ReplicaSet or DaemonSet, a
/// dash and a few random letters, so the first part repeats.
fn try_split<'a>(rows: &ColumnValues<'a>) -> Option<Candidate<'a>> {
    let exceptions = find_exceptions(rows.values.len(), |row| split_parts(rows.values[row]).is_some())?;
    let parts: Vec<(&[u8], &[u8])> = rows.values.iter().map(|value| split_parts(value).unwrap_or_default()).collect();
    let heads = Dictionary::new(parts.iter().map(|(head, _)| *head));
    let tails: Vec<&[u8]> = parts.iter().map(|(_, tail)| *tail).collect();
    let cost = heads.cost() + texts_cost(&tails);
    Some(candidate(rows, ColumnBody::Split(heads, tails), exceptions, cost))
}

/// Splits a value at its last dash.
pub(super) fn split_parts(value: &[u8]) -> Option<(&[u8], &[u8])> {
    value.iter().rposition(|byte| *byte == b'-').map(|dash| (&value[..dash], &value[dash + 1..]))
}

impl<'a> Dictionary<'a> {
    fn new(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut indices, mut texts) = (TextMap::<usize>::default(), Vec::new());
        let mut rows = Vec::new();
        for value in values {
            let last = rows.last().filter(|last: &&usize| texts.get(**last).is_some_and(|text| *text == value)).copied();
            let index = last.unwrap_or_else(|| {
                *indices.entry(value).or_insert_with(|| {
                    texts.push(value);
                    texts.len() - 1
                })
            });
            rows.push(index);
        }
        Self { texts, rows }
    }

    fn width(&self) -> usize {
        width_of(self.texts.len().saturating_sub(1) as u64)
    }

    fn cost(&self) -> usize {
        texts_cost(&self.texts) + self.rows.len() * self.width()
    }
}

fn common_prefix<'a>(texts: &[&'a [u8]]) -> &'a [u8] {
    let Some((first, rest)) = texts.split_first() else { return &[] };
    let mut prefix = *first;
    for text in rest {
        prefix = &prefix[..common_prefix_length(prefix, text)];
        if prefix.is_empty() {
            break;
        }
    }
    prefix
}

fn texts_cost(texts: &[&[u8]]) -> usize {
    let prefix = common_prefix(texts).len();
    let suffixes: usize = texts.iter().map(|text| text.len() - prefix).sum();
    prefix + suffixes + texts.len() * width_of(suffixes as u64)
}

pub(super) fn put_texts(out: &mut Vec<u8>, texts: &[&[u8]]) {
    let prefix = common_prefix(texts);
    put_varint(out, texts.len() as u64);
    put_text(out, prefix);
    let total: usize = texts.iter().map(|text| text.len() - prefix.len()).sum();
    let width = width_of(total as u64);
    put_fixed(out, width as u64, 1);
    let mut end = 0;
    for text in texts {
        end += text.len() - prefix.len();
        put_fixed(out, end as u64, width);
    }
    texts.iter().for_each(|text| out.extend_from_slice(&text[prefix.len()..]));
}

fn put_table(out: &mut Vec<u8>, dictionary: &Dictionary<'_>) {
    put_texts(out, &dictionary.texts);
    let width = dictionary.width();
    put_fixed(out, width as u64, 1);
    dictionary.rows.iter().for_each(|row| put_fixed(out, *row as u64, width));
}

fn put_body(out: &mut Vec<u8>, rows: &ColumnValues<'_>, chosen: &Candidate<'_>) {
    match &chosen.body {
        ColumnBody::Constant(text) => {
            out.push(CONSTANT);
            put_text(out, text);
        }
        ColumnBody::WithoutBody(form) => out.push(*form),
        ColumnBody::Same(column) => {
            out.push(SAME);
            put_varint(out, *column as u64);
        }
        ColumnBody::Table(dictionary) => {
            out.push(TABLE);
            put_table(out, dictionary);
        }
        ColumnBody::Decimal(numbers) => {
            out.push(DECIMAL);
            put_numbers(out, numbers);
        }
        ColumnBody::Ipv4(addresses) => {
            out.push(IPV4);
            addresses.iter().for_each(|address| put_fixed(out, *address, 4));
        }
        ColumnBody::Uuid(uuids) => {
            out.push(UUID);
            uuids.iter().for_each(|uuid| out.extend_from_slice(uuid));
        }
        ColumnBody::Split(heads, tails) => {
            out.push(SPLIT);
            put_table(out, heads);
            put_texts(out, tails);
        }
        ColumnBody::Texts => {
            out.push(TEXTS);
            put_texts(out, rows.values);
        }
    }
}
