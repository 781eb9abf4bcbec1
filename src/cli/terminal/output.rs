//! Output formats of the commands: tables that fit the terminal, JSON, YAML, names, or kubectl's
//! templates and custom columns.
//!
//! A table is a list of [`TableColumn`]s; `-o wide` shows more of them. Tables and names are made
//! from the `dto` shapes of this version. JSON and YAML print the API's answer itself, including
//! members that this version does not know.
//!
//! Every command prints through [`print`], [`print_coloured`] or [`EscapingWriter`], which escape
//! the characters that control the terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal, StdoutLock, Write};

use anstream::{AutoStream, ColorChoice};
use clap::Args;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(in crate::cli) use super::colour::{Colour, coloured};
use super::json_path::JsonPathTemplate;
use super::layout::{Heading, TableStyle};
use super::progress::terminal_columns;
use super::route_commands::name_commands;
pub(in crate::cli) use super::table_cells::one_line;
use super::table_cells::{CustomColumns, TableCells};
use crate::cli::failure::{Failure, ResultExt as _};
use crate::model::{is_terminal_control, printable, printable_with_colours, without_colours};

/// Start of the message for a failed write to standard output.
const NOT_WRITTEN: &str = "cannot write to standard output";

/// Output format. The arguments are parsed once and never freed, so that the format is `Copy`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cli) enum OutputFormat {
    /// Columns
    Table,
    /// All columns
    Wide,
    /// The API's JSON
    Json,
    /// The API's objects as YAML
    Yaml,
    /// Only names, one per line
    Name,
    /// Values of the API's JSON, as text
    JsonPath(&'static JsonPathTemplate),
    /// Columns with values of the API's JSON
    CustomColumns(&'static CustomColumns),
}

/// Output formats as the user types them. The last two have an argument.
pub(in crate::cli) const OUTPUT_FORMATS: [&str; 7] = ["table", "wide", "json", "yaml", "name", "jsonpath=", "custom-columns="];

impl OutputFormat {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(template) = text.strip_prefix("jsonpath=") {
            return JsonPathTemplate::parse(template).map(|template| Self::JsonPath(Box::leak(Box::new(template))));
        }
        if let Some(columns) = text.strip_prefix("custom-columns=") {
            return CustomColumns::parse(columns).map(|columns| Self::CustomColumns(Box::leak(Box::new(columns))));
        }
        match text {
            "table" => Ok(Self::Table),
            "wide" => Ok(Self::Wide),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            "name" => Ok(Self::Name),
            _ => Err(format!("use one of {}", OUTPUT_FORMATS.join(", "))),
        }
    }

    /// Returns whether the format is a table with this version's columns.
    pub(in crate::cli) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    /// Returns whether the format prints the API's answer with all its members.
    pub(in crate::cli) fn is_whole_answer(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }
}

#[derive(Debug, Clone, Copy, Args)]
pub(in crate::cli) struct OutputOptions {
    /// Output format: table, wide, json, yaml, name, jsonpath=TEMPLATE or
    /// custom-columns=HEADING:PATH,…
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = OutputFormat::parse)]
    pub(in crate::cli) output: OutputFormat,
}

pub(in crate::cli) struct TableColumn<T> {
    pub(super) heading: &'static str,
    /// Whether the column is shown only with `-o wide`.
    pub(in crate::cli) wide: bool,
    /// True if a terminal shows the cell below the line of its object, without the heading. A line
    /// feed in the cell separates lines.
    below: bool,
    cell: CellText<T>,
}

/// Function that returns the text of the cell for an object.
enum CellText<T> {
    Fixed(fn(&T) -> String),
    /// The text depends on the time that the answer describes.
    AtTime(fn(&T, Timestamp) -> String),
}

impl<T> TableColumn<T> {
    pub(in crate::cli) const fn new(heading: &'static str, cell: fn(&T) -> String) -> Self {
        Self { heading, wide: false, below: false, cell: CellText::Fixed(cell) }
    }

    /// Returns the column with the age of an object at the time that the answer describes.
    pub(in crate::cli) const fn age(cell: fn(&T, Timestamp) -> String) -> Self {
        Self { heading: "AGE", wide: false, below: false, cell: CellText::AtTime(cell) }
    }

    pub(in crate::cli) const fn wide(heading: &'static str, cell: fn(&T) -> String) -> Self {
        Self { heading, wide: true, below: false, cell: CellText::Fixed(cell) }
    }

    pub(in crate::cli) const fn below(heading: &'static str, cell: fn(&T) -> String) -> Self {
        Self { heading, wide: false, below: true, cell: CellText::Fixed(cell) }
    }

    fn text(&self, item: &T, time: Timestamp) -> String {
        match self.cell {
            CellText::Fixed(cell) => cell(item),
            CellText::AtTime(cell) => cell(item, time),
        }
    }
}

/// Columns and name of a kind of object.
pub(in crate::cli) struct TableShape<T: 'static> {
    pub(in crate::cli) columns: &'static [TableColumn<T>],
    /// Function that returns the name of an object, for `-o name`.
    pub(in crate::cli) name: fn(&T) -> String,
}

/// A [`TableShape`] without its type parameter, so that shapes of all kinds fit in one list.
pub(in crate::cli) trait Tabular: Sync {
    /// Returns the headings, and a row for each object. Ages are those at `time`.
    fn cells(&self, items: &[Value], wide: bool, time: Timestamp) -> Result<TableCells, Failure>;

    /// Returns the rows below their headings. Each line ends with a line feed.
    fn table(&self, items: &[Value], style: TableStyle, time: Timestamp) -> Result<String, Failure> {
        self.cells(items, style.wide, time).map(|cells| cells.text(style))
    }

    /// Returns the name of an object, for `-o name`.
    fn name(&self, item: &Value) -> Result<String, Failure>;
}

impl<T: DeserializeOwned> Tabular for TableShape<T> {
    fn cells(&self, items: &[Value], wide: bool, time: Timestamp) -> Result<TableCells, Failure> {
        let mut failure = Ok(());
        let items = items.iter().map_while(|item| parse_answer(item).map_err(|error| failure = Err(error)).ok());
        let cells = cells_at(self, items, wide, time);
        failure.map(|()| cells)
    }

    fn name(&self, item: &Value) -> Result<String, Failure> {
        parse_answer(item).map(|item| (self.name)(&item))
    }
}

/// Deserializes an answer of the API as `T`.
///
/// Characters that control the terminal are escaped first, and line feeds and tabs become blanks:
/// names come from other clusters, and must neither break out of their line nor control the
/// terminal.
pub(in crate::cli) fn parse_answer<T: DeserializeOwned>(answer: &Value) -> Result<T, Failure> {
    let invalid =
        |error| Failure::unavailable(format!("this version does not understand the answer ({error}): -o json prints it unchanged"));
    if has_terminal_controls(answer) { T::deserialize(&texts_in_one_line(answer)) } else { T::deserialize(answer) }.map_err(invalid)
}

/// Returns whether any text in the value has a character that controls the terminal.
fn has_terminal_controls(value: &Value) -> bool {
    let in_text = |text: &str| text.chars().any(is_terminal_control);
    match value {
        Value::String(text) => in_text(text),
        Value::Array(items) => items.iter().any(has_terminal_controls),
        Value::Object(members) => members.iter().any(|(name, member)| in_text(name) || has_terminal_controls(member)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn texts_in_one_line(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(one_line(text)),
        Value::Array(items) => items.iter().map(texts_in_one_line).collect(),
        Value::Object(members) => members.iter().map(|(name, member)| (one_line(name), texts_in_one_line(member))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

pub(in crate::cli) fn print_list(format: OutputFormat, shape: &dyn Tabular, items: &[Value]) -> Result<(), Failure> {
    print_items(format, true, shape, items, Timestamp::now())
}

/// Prints a list, with or without headings. Ages are those at `time`.
pub(super) fn print_items(
    format: OutputFormat,
    has_headings: bool,
    shape: &dyn Tabular,
    items: &[Value],
    time: Timestamp,
) -> Result<(), Failure> {
    match format {
        OutputFormat::Table | OutputFormat::Wide => {
            print_coloured(&shape.table(items, TableStyle { has_headings, ..table_style(format) }, time)?)
        }
        OutputFormat::Json => print_json(&json!({ "items": items })),
        OutputFormat::Yaml => print_yaml(&json!({ "items": items })),
        OutputFormat::Name => {
            let names = items.iter().map(|item| shape.name(item).map(|name| name + "\n"));
            print(&names.collect::<Result<String, Failure>>()?)
        }
        OutputFormat::JsonPath(template) => print(&template.text(&json!({ "items": items }))),
        OutputFormat::CustomColumns(columns) => {
            print_coloured(&columns.cells(items).text(TableStyle { has_headings, ..table_style(format) }))
        }
    }
}

pub(in crate::cli) fn print_one(format: OutputFormat, shape: &dyn Tabular, item: &Value) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => print_json(item),
        OutputFormat::Yaml => print_yaml(item),
        OutputFormat::JsonPath(template) => print(&template.text(item)),
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name | OutputFormat::CustomColumns(_) => {
            print_list(format, shape, std::slice::from_ref(item))
        }
    }
}

/// Returns the columns and the width of a table for standard output. Lines in a pipe are not
/// wrapped, because programs split them at blanks and not at a width.
pub(in crate::cli) fn table_style(format: OutputFormat) -> TableStyle {
    let width = io::stdout().is_terminal().then(|| terminal_columns(io::stdout()).into());
    TableStyle { wide: format == OutputFormat::Wide, has_headings: true, width }
}

/// Returns the headings of a shape, and a row for each item. Paths of the API in a cell become
/// commands.
pub(in crate::cli) fn cells<T>(shape: &TableShape<T>, items: impl IntoIterator<Item = T>, wide: bool) -> TableCells {
    cells_at(shape, items, wide, Timestamp::now())
}

fn cells_at<T>(shape: &TableShape<T>, items: impl IntoIterator<Item = T>, wide: bool, time: Timestamp) -> TableCells {
    let columns: Vec<&TableColumn<T>> = shape.columns.iter().filter(|column| wide || !column.wide).collect();
    let row = |item| columns.iter().map(|column| name_commands(&column.text(&item, time))).collect();
    TableCells {
        headings: columns.iter().map(|column| Heading { text: column.heading.to_owned(), below: column.below }).collect(),
        rows: items.into_iter().map(row).collect(),
    }
}

/// Returns the rows below their headings. Each line ends with a line feed.
pub(in crate::cli) fn table<T>(shape: &TableShape<T>, items: impl IntoIterator<Item = T>, style: TableStyle) -> String {
    cells(shape, items, style.wide).text(style)
}

/// Prints text that may contain characters from remote sources. A closed pipe ends the command
/// quietly, as with other Unix commands.
pub(in crate::cli) fn print(text: &str) -> Result<(), Failure> {
    map_broken_pipe(write(text))
}

/// Prints text with [`coloured`] parts. The caller has already escaped everything from remote
/// sources ([`parse_answer`], [`one_line`]).
pub(in crate::cli) fn print_coloured(text: &str) -> Result<(), Failure> {
    if !has_colours() {
        return print(&without_colours(text));
    }
    let mut out = io::stdout().lock();
    map_broken_pipe(out.write_all(printable_with_colours(text).as_bytes()).and_then(|()| out.flush()))
}

/// Prints a document. Unlike with [`print`], a closed pipe is not a failure: its reader has read
/// enough, and the exit code reports the command's result.
pub(in crate::cli) fn print_document(write: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.or_fail(NOT_WRITTEN),
    }
}

/// Writes text that may contain characters from remote sources to standard output.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(printable(text).as_bytes()).and_then(|()| out.flush())
}

fn map_broken_pipe(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(""),
        _ => Failure::new(format!("{NOT_WRITTEN}: {error}")),
    })
}

/// A writer that escapes the characters that control the terminal. Each write must consist of whole
/// characters, as those of `write!` do.
pub(in crate::cli) struct EscapingWriter<W>(pub(in crate::cli) W);

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(printable(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints a value as indented JSON.
pub(in crate::cli) fn print_json(value: &Value) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(error.to_string()))?;
    print(&(text + "\n"))
}

pub(in crate::cli) fn print_yaml(value: &Value) -> Result<(), Failure> {
    print(&yaml(value)?)
}

/// Returns a value as YAML. YAML has no escapes outside quotation marks, so a value with characters
/// that must be escaped is written in YAML's flow form, which is JSON.
pub(in crate::cli) fn yaml(value: &Value) -> Result<String, Failure> {
    let failed = |error: &dyn Display| Failure::new(error.to_string());
    if has_terminal_controls(value) {
        return serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|error| failed(&error));
    }
    serde_yaml_ng::to_string(value).map_err(|error| failed(&error))
}

pub(in crate::cli) fn text(value: Option<&impl Display>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// Returns a number as text; empty for 0, which means "none".
pub(in crate::cli) fn number(value: impl Into<u64>) -> String {
    let value = value.into();
    if value == 0 { String::new() } else { value.to_string() }
}

/// Joins values with commas.
pub(in crate::cli) fn joined(values: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    values.into_iter().map(|value| value.as_ref().to_owned()).collect::<Vec<_>>().join(",")
}

/// Returns labels in kubectl's form.
pub(in crate::cli) fn labels(labels: impl IntoIterator<Item = (impl Display, impl Display)>) -> String {
    joined(labels.into_iter().map(|(key, value)| format!("{key}={value}")))
}

/// Returns a time as kubectl writes ages: `4s`, `2m10s`, `3h5m`, `2d4h`.
pub(in crate::cli) fn age(seconds: f64) -> String {
    let total = std::time::Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(std::time::Duration::MAX).as_secs();
    let (days, hours, minutes) = (total / 86_400, total / 3_600 % 24, total / 60 % 60);
    let parts = |large: u64, unit: &str, small: u64, smaller: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{smaller}"),
    };
    match total {
        0..60 if seconds < 10.0 => format!("{:.1}s", seconds.max(0.0)),
        0..120 => format!("{total}s"),
        120..3_600 => parts(minutes, "m", total % 60, "s"),
        3_600..86_400 => parts(hours, "h", minutes, "m"),
        _ => parts(days, "d", hours, "h"),
    }
}

pub(in crate::cli) fn age_of(seconds: Option<f64>) -> String {
    seconds.map(age).unwrap_or_default()
}

/// Returns the time since `time` as an age; empty if the time is unknown.
pub(in crate::cli) fn age_since(time: Option<Timestamp>) -> String {
    age_of(time.map(|time| Timestamp::now().duration_since(time).as_secs_f64()))
}

/// Returns whether standard output has colours. A terminal has them, and a pipe has none, unless
/// `NO_COLOR` or `CLICOLOR_FORCE` is set (no-color.org, bixense.com/clicolors).
fn has_colours() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_names_do_not_control_the_terminal() {
        let remote = json!({"name": "x\u{1b}[31m\u{7}\nFAKE", "labels": {"a\u{9b}": ["\tb\u{202e}"]}, "count": 1});
        let expected = json!({"name": r"x\u001b[31m\u0007 FAKE", "labels": {r"a\u009b": [r" b\u202e"]}, "count": 1});
        assert_eq!(parse_answer::<Value>(&remote).unwrap(), expected);
        assert_eq!(parse_answer::<Value>(&expected).unwrap(), expected);
    }

    #[test]
    fn yaml_keeps_values_and_escapes_control_characters() {
        let hostile = json!({"items": [{"name": "x\u{1b}[31m\u{7f}\u{9b}\u{202e}\n", "count": 1}]});
        let text = yaml(&hostile).unwrap();
        let printed = printable(&text);
        assert!(!printed.chars().any(|character| is_terminal_control(character) && character != '\n'), "{printed}");
        assert_eq!(serde_yaml_ng::from_str::<Value>(&printed).unwrap(), hostile);
        assert_eq!(yaml(&json!({"a": ["b"]})).unwrap(), "a:\n- b\n");
    }

    #[test]
    fn the_writer_escapes_control_characters() {
        let mut out = EscapingWriter(Vec::new());
        writeln!(out, "{}", json!({"key": "x\u{1b}\u{7f}\u{202e}東"})).unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "{\"key\":\"x\\u001b\\u007f\\u202e東\"}\n");
    }

    #[test]
    fn ages_are_written_as_kubectl_does() {
        let written: Vec<String> = [0.04, 9.94, 59.0, 119.9, 130.0, 3_600.0, 11_100.0, 187_200.0].into_iter().map(age).collect();
        assert_eq!(written, ["0.0s", "9.9s", "59s", "119s", "2m10s", "1h", "3h5m", "2d4h"]);
    }

    #[test]
    fn empty_cells_are_dashes_and_lines_have_no_trailing_blanks() {
        type TestRow = (&'static str, &'static [(&'static str, &'static str)], Option<u32>);
        const SHAPE: TableShape<TestRow> = TableShape {
            columns: &[
                TableColumn::new("NAME", |(name, _, _)| (*name).to_owned()),
                TableColumn::new("LABELS", |(_, pairs, _)| labels(pairs.iter().copied())),
                TableColumn::wide("ID", |(_, _, id)| text(id.as_ref())),
            ],
            name: |(name, _, _)| (*name).to_owned(),
        };
        let items: [TestRow; 2] = [("paris", &[("a", "1"), ("b", "2")], Some(7)), ("tokyo-1", &[], None)];
        let piped = |wide, has_headings| table(&SHAPE, items, TableStyle { wide, has_headings, width: None });
        assert_eq!(piped(false, true), "NAME     LABELS\nparis    a=1,b=2\ntokyo-1  -\n");
        assert_eq!(piped(true, true), "NAME     LABELS   ID\nparis    a=1,b=2  7\ntokyo-1  -        -\n");
        assert_eq!(piped(false, false), "paris    a=1,b=2\ntokyo-1  -\n");
    }

    #[test]
    fn an_unknown_shape_is_reported() {
        let shape: TableShape<crate::dto::objects::NodeAddress> = TableShape { columns: &[], name: |address| address.ip.clone() };
        assert_eq!(shape.name(&json!({"type": "InternalIP", "ip": "10.0.0.1", "tomorrow": 1})).unwrap(), "10.0.0.1");
        let failure =
            shape.table(&[json!({"ip": "10.0.0.1"})], table_style(OutputFormat::Table), Timestamp::now()).unwrap_err().to_string();
        assert_eq!(failure, "this version does not understand the answer (missing field `type`): -o json prints it unchanged");
    }
}
