//! Filters of rows by fields of their values, without decoding a value.
//!
//! The literals of a template contain the names of the fields, and most of their texts are in
//! dictionaries. A chunk without a matching row usually costs a few comparisons per template. For
//! the usual filters of ipcache entries, a Bloom filter excludes such a chunk (`text_filter`).
//!
//! A row is excluded only if its object certainly does not match. The caller decodes the other rows
//! and tests their objects. Where the texts could hide a field, for instance in an escape sequence,
//! nothing is excluded.

use std::net::{IpAddr, Ipv4Addr};

use memchr::{memchr, memchr_iter, memmem};

use super::Chunk;
use super::byte_reader::ByteSpan;
use super::chunk::ChunkData;
use super::column::{ColumnForm, RowInput, TextList};
use super::form_choice::split_parts;
use super::sections::{ScopeGroup, Template};
use super::text_filter::{FIELDS, HOST, TextElement, TextFilter};
use crate::model::Kind;

/// Fields of ipcache entries whose columns each template knows.
const IP_FIELDS: [&str; FIELDS] = ["HostIP", "K8sNamespace", "K8sPodName"];

/// Field of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowField {
    /// Host address of an ipcache entry.
    HostIp,
    /// Namespace of an ipcache entry.
    Namespace,
    /// Pod of an ipcache entry.
    Pod,
    /// Label with this key, for identities without the source.
    Label(String),
    /// Each label of an identity.
    AnyLabel,
}

/// Condition on the text of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextTest {
    /// The field exists.
    Exists,
    /// The text is one of these. None of them is empty.
    Equals(Vec<String>),
    /// The text is one of these addresses, in any spelling.
    IsAddress(Vec<IpAddr>),
    /// The text contains this part, in upper or lower case. The part is in lower case. It is not
    /// empty, and for [`RowField::AnyLabel`] it has no separator of labels.
    Contains(String),
}

/// Condition that a row must meet in at least one of some fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldTest {
    /// Fields with the texts.
    pub fields: Vec<RowField>,
    /// Condition on the text.
    pub test: TextTest,
}

/// Conditions on rows, by kind as in lists. A row must meet all tests of its kind. Rows of other
/// kinds do not match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowFilter(pub Vec<(Kind, Vec<FieldTest>)>);

/// Tests of a template's rows. A row may match if each test passes for the text in one of its
/// columns; without a test, all rows may.
type ColumnTests<'a> = Vec<(Vec<usize>, &'a TextTest)>;

impl Chunk {
    /// Returns `false` only if no row matches a filter. Computes a Bloom filter at the first use.
    /// Use it only for chunks that are filtered several times.
    #[must_use]
    pub fn may_have_match(&self, filter: &RowFilter) -> bool {
        let packed = &self.0;
        let of_entries = filter.0.iter().find(|(kind, tests)| *kind == Kind::Ip && tests.iter().any(FieldTest::is_exact));
        !of_entries.is_some_and(|(_, tests)| packed.text_filter.get_or_init(|| packed.filter_of_texts()).excludes(tests))
    }

    /// Returns the rows that may match a filter, in order.
    #[must_use]
    pub fn rows_matching(&self, filter: &RowFilter) -> Vec<usize> {
        let packed = &self.0;
        let (mut rows, mut by_template, mut tested) = (Vec::new(), Vec::new(), None);
        for group in &packed.groups {
            let kind = group.kind.listed_as();
            let Some((_, tests)) = filter.0.iter().find(|(filtered, _)| *filtered == kind) else { continue };
            if tested != Some(kind) {
                tested = Some(kind);
                by_template = packed.templates.iter().map(|template| template.column_tests(&packed.bytes, tests)).collect();
            }
            packed.add_rows_passing(group, &by_template, &mut rows);
        }
        rows
    }
}

impl ChunkData {
    /// Computes the filter of the chunk. It excludes nothing if the chunk has records other than
    /// ipcache entries, or values without a template.
    fn filter_of_texts(&self) -> TextFilter {
        let has_only_entries = self.groups.iter().all(|group| group.kind == Kind::Ip);
        let has_other_values = self.numbers.template.may_contain(&self.bytes, 0) || !self.extras_in(0..self.count).is_empty();
        if !has_only_entries || has_other_values {
            return TextFilter::unknown();
        }
        let (mut elements, mut is_unknown) = (Vec::with_capacity(self.count * 2), [false; FIELDS]);
        for template in &self.templates {
            for (field, columns) in template.ip_columns.iter().enumerate() {
                let are_known = columns.as_ref().is_some_and(|columns| {
                    columns.iter().all(|column| template.add_elements(*column, field, &self.bytes, &mut elements).is_some())
                });
                is_unknown[field] |= !are_known;
            }
        }
        TextFilter::new(elements, is_unknown)
    }

    /// Adds the rows of a group that may match, given the tests of each template. No row of a
    /// template without tests matches.
    fn add_rows_passing(&self, group: &ScopeGroup, by_template: &[Option<ColumnTests<'_>>], rows: &mut Vec<usize>) {
        let (bytes, number, range) = (&*self.bytes, self.numbers.template, group.start..group.end);
        let has_other_values = number.may_contain(bytes, 0) || !self.extras_in(range.clone()).is_empty();
        if !has_other_values && by_template.iter().all(Option::is_none) {
            return;
        }
        let (mut name, mut text) = (Vec::with_capacity(32), Vec::with_capacity(64));
        rows.extend(range.filter(|row| {
            let Some(index) = self.template_index(*row) else { return true };
            // the object of such a row may come from an earlier value
            if has_other_values && self.extra(*row).is_some() {
                return true;
            }
            let Some(tests) = &by_template[index] else { return false };
            if tests.is_empty() {
                return true;
            }
            name.clear();
            self.append_name(*row, &mut name);
            let input = RowInput { bytes, name: &name, index: number.rank(bytes, *row) };
            tests
                .iter()
                .all(|(columns, test)| columns.iter().any(|column| self.templates[index].row_passes(*column, test, input, &mut text)))
        }));
    }
}

impl Template {
    /// Finds the columns of [`IP_FIELDS`].
    pub(super) fn find_ip_columns(&mut self, bytes: &[u8]) {
        self.ip_columns = IP_FIELDS.map(|field| self.columns_of(field, bytes));
    }

    /// Returns the tests of the rows, or `None` if no row passes all of them.
    fn column_tests<'a>(&'a self, bytes: &[u8], tests: &'a [FieldTest]) -> Option<ColumnTests<'a>> {
        let mut passing = Vec::new();
        for FieldTest { fields, test } in tests {
            let columns = fields.iter().try_fold(Vec::new(), |mut columns, field| {
                columns.extend(self.columns_of_field(field, test, bytes)?);
                Some(columns)
            });
            let Some(columns) = columns else { continue };
            if !columns.iter().any(|column| self.may_pass(*column, test, bytes)) {
                return None;
            }
            passing.push((columns, test));
        }
        Some(passing)
    }

    /// Returns the columns to test for a field; `None` if other texts may pass the test.
    fn columns_of_field(&self, field: &RowField, test: &TextTest, bytes: &[u8]) -> Option<Vec<usize>> {
        match field {
            RowField::HostIp | RowField::Namespace | RowField::Pod => self.ip_columns[field.ip_index()?].clone(),
            RowField::Label(key) => self.columns_of(key, bytes),
            RowField::AnyLabel => {
                let in_literal = self.literals.iter().any(|literal| test.passes(literal.slice(bytes)));
                (!in_literal && !self.is_json(bytes)).then(|| (0..self.columns.len()).collect())
            }
        }
    }

    /// Returns whether the values were cut as JSON and not as labels (`pack/template.rs`).
    fn is_json(&self, bytes: &[u8]) -> bool {
        self.literals.first().is_some_and(|first| first.slice(bytes).first() == Some(&b'{'))
    }

    /// Returns the columns with the texts of a field or label; `None` if it may have other texts.
    fn columns_of(&self, name: &str, bytes: &[u8]) -> Option<Vec<usize>> {
        let (is_json, mut columns) = (self.is_json(bytes), Vec::new());
        for (index, literal) in self.literals.iter().map(|literal| literal.slice(bytes)).enumerate() {
            let is_last = index == self.columns.len();
            let is_column = if is_json { is_json_field(literal, name)? } else { is_label(literal, name, is_last)? };
            if is_column && !is_last {
                columns.push(index);
            }
        }
        let has_escapes = |column: &usize| is_json && self.has_backslash(*column, bytes);
        if columns.iter().any(has_escapes) { None } else { Some(columns) }
    }

    /// Returns false if no row of a column passes a test.
    fn may_pass(&self, column: usize, test: &TextTest, bytes: &[u8]) -> bool {
        let column = &self.columns[column];
        let may_pass = match column.form {
            ColumnForm::Constant(text) => test.passes(text.slice(bytes)),
            ColumnForm::Table(table) => table.texts.may_pass(test, bytes),
            ColumnForm::Texts(texts) => texts.may_pass(test, bytes),
            ColumnForm::Split(heads, tails) => match test {
                TextTest::Equals(texts) => texts
                    .iter()
                    .filter_map(|text| split_parts(text.as_bytes()))
                    .any(|(head, tail)| heads.texts.has_text(head, bytes) && tails.has_text(tail, bytes)),
                TextTest::Contains(part) => part
                    .split('-')
                    .filter(|part| !part.is_empty())
                    .all(|part| heads.texts.may_contain(part.as_bytes(), bytes) || tails.may_contain(part.as_bytes(), bytes)),
                _ => true,
            },
            ColumnForm::Ipv4(start) => match test {
                TextTest::IsAddress(addresses) => addresses.iter().any(|ip| self.may_have_ipv4(*ip, start, bytes)),
                _ => true,
            },
            ColumnForm::Same(earlier) => self.may_pass(earlier as usize, test, bytes),
            _ => true,
        };
        may_pass || column.exceptions().iter().any(|(_, text)| test.passes(text.slice(bytes)))
    }

    /// Returns false if none of a column's addresses, which begin at `start`, is `ip`.
    fn may_have_ipv4(&self, ip: IpAddr, start: u32, bytes: &[u8]) -> bool {
        let IpAddr::V4(ip) = ip else { return false };
        let (start, length) = (start as usize, self.rows * 4);
        let addresses = bytes.get(start..start + length).unwrap_or_default();
        memmem::find(addresses, &ip.to_bits().to_le_bytes()).is_some()
    }

    /// Adds the elements of a column's texts. Returns `None` if the column may have other texts.
    fn add_elements(&self, column: usize, field: usize, bytes: &[u8], elements: &mut Vec<TextElement>) -> Option<()> {
        let column = &self.columns[column];
        let mut add_text = |prefix: &[u8], text: &[u8]| elements.extend(TextElement::of_value(field, prefix, text));
        let mut add_list = |texts: TextList| {
            (0..texts.count as usize).for_each(|index| add_text(texts.prefix.slice(bytes), texts.suffix(bytes, index)));
        };
        match column.form {
            ColumnForm::Constant(text) => add_text(&[], text.slice(bytes)),
            ColumnForm::Table(table) => add_list(table.texts),
            ColumnForm::Texts(texts) => add_list(texts),
            ColumnForm::Split(_, tails) if field != HOST => {
                let prefix = tails.prefix.slice(bytes);
                elements.extend((0..tails.count as usize).map(|index| TextElement::of_tail(field, prefix, tails.suffix(bytes, index))));
            }
            ColumnForm::Ipv4(start) if field == HOST => {
                let addresses = bytes.get(start as usize..)?.chunks_exact(4).take(self.rows);
                elements.extend(addresses.map(|ip| TextElement::of_address(Ipv4Addr::from([ip[3], ip[2], ip[1], ip[0]]).into())));
            }
            ColumnForm::Same(earlier) => self.add_elements(earlier as usize, field, bytes, elements)?,
            _ => return None,
        }
        elements.extend(column.exceptions().iter().filter_map(|(_, text)| TextElement::of_value(field, &[], text.slice(bytes))));
        Some(())
    }

    fn row_passes(&self, column: usize, test: &TextTest, row: RowInput<'_>, text: &mut Vec<u8>) -> bool {
        text.clear();
        self.append(column, row, text);
        test.passes(text) || text.contains(&b'\\')
    }

    /// Returns whether a text in a column, other than a part of a name, has a backslash.
    fn has_backslash(&self, column: usize, bytes: &[u8]) -> bool {
        let (column, has) = (&self.columns[column], |text: ByteSpan| memchr(b'\\', text.slice(bytes)).is_some());
        let in_list = |texts: TextList| texts.has_byte(b'\\', bytes);
        let in_form = match column.form {
            ColumnForm::Constant(text) => has(text),
            ColumnForm::Table(table) => in_list(table.texts),
            ColumnForm::Texts(texts) => in_list(texts),
            ColumnForm::Split(heads, tails) => in_list(heads.texts) || in_list(tails),
            ColumnForm::Same(earlier) => self.has_backslash(earlier as usize, bytes),
            _ => false,
        };
        in_form || column.exceptions().iter().any(|(_, text)| has(*text))
    }
}

/// Returns whether a literal of JSON ends where the text of a member begins. Returns `None` if the
/// member may have another text: a key can have escapes, and letters that Go folds. Space before a
/// colon turns a key into the text of a column, and so does the form of an address
/// (`pack/template.rs`).
fn is_json_field(literal: &[u8], name: &str) -> Option<bool> {
    let is_plain = literal.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'\\');
    let is_address_like = name.starts_with(|first: char| first.is_ascii_digit()) || name.contains("::");
    if !is_plain || is_address_like || !name.is_ascii() {
        return None;
    }
    // what follows the name in each key that is equal to it
    let mut found = memchr_iter(b'"', literal).filter_map(|quote| {
        let (key, rest) = literal[quote + 1..].split_at_checked(name.len())?;
        (key.eq_ignore_ascii_case(name.as_bytes()) && rest.first() == Some(&b'"')).then_some(rest)
    });
    match (found.next(), found.next()) {
        (None, _) => Some(false),
        (Some(b"\":\""), None) => Some(true),
        _ => None,
    }
}

/// Returns whether a literal of labels ends where the value of a label begins. Returns `None` if
/// the label may have another value, or none: without a colon before the equals sign the value can
/// contain a key, and so it can after `reserved:=`.
fn is_label(literal: &[u8], key: &str, is_last: bool) -> Option<bool> {
    let mut labels = literal.rsplit(|byte| *byte == b';');
    let value_begins = if is_last { None } else { labels.next()?.strip_suffix(b"=") };
    let is_regular = |label: &[u8]| (label.contains(&b':') || label.first() == Some(&b'$')) && !label.ends_with(b":");
    if value_begins.is_some_and(|label| !is_regular(label)) || labels.any(|label| label.ends_with(key.as_bytes())) {
        return None;
    }
    Some(value_begins.is_some_and(|label| label.ends_with(key.as_bytes())))
}

impl TextFilter {
    /// Returns true if certainly no row meets all tests.
    fn excludes(&self, tests: &[FieldTest]) -> bool {
        let is_excluded = |field: &RowField, test: &TextTest| match (field.ip_index(), test) {
            (Some(HOST), TextTest::IsAddress(addresses)) => !addresses.iter().any(|ip| self.may_have_host(*ip)),
            (Some(HOST) | None, _) => false,
            (Some(field), TextTest::Equals(texts)) => !texts.iter().any(|text| self.may_have_text(field, text.as_bytes())),
            (Some(_), _) => false,
        };
        tests.iter().any(|FieldTest { fields, test }| fields.iter().all(|field| is_excluded(field, test)))
    }
}

impl FieldTest {
    /// Returns whether a Bloom filter can exclude rows by the test.
    fn is_exact(&self) -> bool {
        let is_exact = matches!(self.test, TextTest::Equals(_) | TextTest::IsAddress(_));
        is_exact && self.fields.iter().all(|field| field.ip_index().is_some())
    }
}

impl RowField {
    /// Returns the index of the field in [`IP_FIELDS`].
    pub(super) const fn ip_index(&self) -> Option<usize> {
        match self {
            Self::HostIp => Some(0),
            Self::Namespace => Some(1),
            Self::Pod => Some(2),
            Self::Label(_) | Self::AnyLabel => None,
        }
    }
}

impl TextTest {
    fn passes(&self, text: &[u8]) -> bool {
        match self {
            Self::Exists => true,
            Self::Equals(texts) => texts.iter().any(|wanted| wanted.as_bytes() == text),
            Self::IsAddress(addresses) => {
                let parsed: Option<IpAddr> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
                parsed.is_some_and(|ip| addresses.contains(&ip.to_canonical()))
            }
            Self::Contains(part) => text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes())),
        }
    }
}

impl TextList {
    /// Returns false if no text passes a test.
    fn may_pass(self, test: &TextTest, bytes: &[u8]) -> bool {
        match test {
            TextTest::Exists => true,
            TextTest::Equals(texts) => texts.iter().any(|text| self.has_text(text.as_bytes(), bytes)),
            TextTest::Contains(part) => self.may_contain(part.as_bytes(), bytes),
            // an IPv4 address has only one spelling without a colon
            TextTest::IsAddress(addresses) if !self.has_byte(b':', bytes) => {
                addresses.iter().any(|ip| ip.is_ipv4() && self.has_text(ip.to_string().as_bytes(), bytes))
            }
            TextTest::IsAddress(_) => {
                let mut text = Vec::with_capacity(40);
                (0..self.count as usize).any(|index| {
                    text.clear();
                    self.append(bytes, index, &mut text);
                    test.passes(&text)
                })
            }
        }
    }

    /// Returns false if no text contains a part, which is in lower case.
    fn may_contain(self, part: &[u8], bytes: &[u8]) -> bool {
        let prefix = self.prefix.slice(bytes);
        let begins_in_prefix = (0..prefix.len()).any(|start| {
            let length = part.len().min(prefix.len() - start);
            prefix[start..start + length].eq_ignore_ascii_case(&part[..length])
        });
        begins_in_prefix || self.has_upper_case || memmem::find(self.bytes.slice(bytes), part).is_some()
    }

    fn has_byte(self, byte: u8, bytes: &[u8]) -> bool {
        memchr(byte, self.prefix.slice(bytes)).is_some() || memchr(byte, self.bytes.slice(bytes)).is_some()
    }

    fn has_text(self, text: &[u8], bytes: &[u8]) -> bool {
        let Some(suffix) = text.strip_prefix(self.prefix.slice(bytes)) else { return false };
        if suffix.is_empty() {
            return (0..self.count as usize).any(|index| self.suffix(bytes, index).is_empty());
        }
        let (all, finder, mut from) = (self.bytes.slice(bytes), memmem::Finder::new(suffix), 0);
        // matches may overlap, so the search continues at the next byte
        while let Some(start) = finder.find(&all[from..]).map(|start| from + start) {
            if self.has_text_at(start..start + suffix.len(), bytes) {
                return true;
            }
            from = start + 1;
        }
        false
    }
}
