//! How answers are printed: tables that fit the terminal, JSON, YAML or names.
//!
//! A table is a list of columns, each a heading and what to say of an object of the API; `wide` has more of them. Tables and names read what the API
//! says as the shapes of `dto`; JSON and YAML are what it says itself, with members that this version does not know. Owns: formats, colour, ages.
//! Deliberately lacks: any knowledge of kinds.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::failure::Failure;

/// Between two columns, as kubectl has them.
const COLUMN_PADDING: (u16, u16) = (0, 2);

/// A form of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Columns for people
    Table,
    /// Columns for people, all of them
    Wide,
    /// The API's JSON
    Json,
    /// The API's objects as YAML
    Yaml,
    /// Names alone, one a line
    Name,
}

/// The options of output.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct OutputOptions {
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(super) output: Format,
}

/// A column of a table.
pub(super) struct Column<T> {
    /// The heading.
    pub(super) heading: &'static str,
    /// Only in `wide`.
    pub(super) wide: bool,
    /// What to say of an object.
    pub(super) cell: fn(&T) -> String,
}

impl<T> Column<T> {
    pub(super) const fn new(heading: &'static str, cell: fn(&T) -> String) -> Self {
        Self { heading, wide: false, cell }
    }

    pub(super) const fn wide(heading: &'static str, cell: fn(&T) -> String) -> Self {
        Self { heading, wide: true, cell }
    }
}

/// What is printed of a kind.
pub(super) struct Shape<T: 'static> {
    /// The columns, from left to right.
    pub(super) columns: &'static [Column<T>],
    /// The name of one object, for `-o name`.
    pub(super) name: fn(&T) -> String,
}

/// What prints objects of one shape, whichever that is.
pub(super) trait Tabular: Sync {
    /// The rows below their headings, each line ended.
    fn table(&self, items: &[Value], wide: bool) -> Result<String, Failure>;

    /// The name of one object, for `-o name`.
    fn name(&self, item: &Value) -> Result<String, Failure>;
}

impl<T: DeserializeOwned> Tabular for Shape<T> {
    fn table(&self, items: &[Value], wide: bool) -> Result<String, Failure> {
        let mut unread = Ok(());
        let items = items.iter().map_while(|item| read(item).map_err(|failure| unread = Err(failure)).ok());
        let table = table(self, items, wide);
        unread.map(|()| table)
    }

    fn name(&self, item: &Value) -> Result<String, Failure> {
        read(item).map(|item| (self.name)(&item))
    }
}

/// What the API says, as the shape that it has in this version.
///
/// Control characters of texts are replaced: names come from other clusters, and must neither write beyond their line nor speak to the terminal.
pub(super) fn read<T: DeserializeOwned>(answer: &Value) -> Result<T, Failure> {
    let other = |error| Failure::unreachable(format!("the answer is not what this version reads ({error}): -o json prints it as it is"));
    if has_controls(answer) { T::deserialize(&without_controls(answer)) } else { T::deserialize(answer) }.map_err(other)
}

fn has_controls(value: &Value) -> bool {
    let in_text = |text: &str| text.chars().any(char::is_control);
    match value {
        Value::String(text) => in_text(text),
        Value::Array(items) => items.iter().any(has_controls),
        Value::Object(members) => members.iter().any(|(name, member)| in_text(name) || has_controls(member)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn without_controls(value: &Value) -> Value {
    let plain = |text: &str| -> String {
        let plain = |character: char| match character {
            '\n' | '\t' => ' ',
            _ if character.is_control() => char::REPLACEMENT_CHARACTER,
            _ => character,
        };
        text.chars().map(plain).collect()
    };
    match value {
        Value::String(text) => Value::String(plain(text)),
        Value::Array(items) => items.iter().map(without_controls).collect(),
        Value::Object(members) => members.iter().map(|(name, member)| (plain(name), without_controls(member))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Prints a list.
pub(super) fn print_list(format: Format, shape: &dyn Tabular, items: &[Value]) -> Result<(), Failure> {
    match format {
        Format::Table | Format::Wide => print(&shape.table(items, format == Format::Wide)?),
        Format::Json => print_json(&json!({ "items": items })),
        Format::Yaml => print_yaml(&json!({ "items": items })),
        Format::Name => {
            let names = items.iter().map(|item| shape.name(item).map(|name| name + "\n"));
            print(&names.collect::<Result<String, Failure>>()?)
        }
    }
}

/// Prints a single object.
pub(super) fn print_one(format: Format, shape: &dyn Tabular, item: &Value) -> Result<(), Failure> {
    match format {
        Format::Json => print_json(item),
        Format::Yaml => print_yaml(item),
        Format::Table | Format::Wide | Format::Name => print_list(format, shape, std::slice::from_ref(item)),
    }
}

/// The rows below their headings, each line ended.
fn table<T>(shape: &Shape<T>, items: impl IntoIterator<Item = T>, wide: bool) -> String {
    let columns: Vec<&Column<T>> = shape.columns.iter().filter(|column| wide || !column.wide).collect();
    let mut table = Table::new();
    // a pipe gets whole lines: what reads it splits at blanks and not at a width
    let arrangement = if io::stdout().is_terminal() { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
    table.load_preset(presets::NOTHING).set_content_arrangement(arrangement);
    table.set_header(columns.iter().map(|column| column.heading));
    let mut has_blanks = vec![false; columns.len()];
    for item in items {
        let cells = columns.iter().map(|column| (column.cell)(&item)).zip(&mut has_blanks).map(|(cell, has_blanks)| {
            *has_blanks |= cell.contains(' ');
            if cell.is_empty() { "-".to_owned() } else { cell }
        });
        table.add_row(cells.collect::<Vec<String>>());
    }
    for (column, has_blanks) in table.column_iter_mut().zip(has_blanks) {
        column.set_padding(COLUMN_PADDING);
        // labels and addresses in a narrow terminal: not in the middle of one
        if !has_blanks {
            column.set_delimiter(',');
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Prints text. A closed pipe ends the command quietly, as it does for others.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::not_found(""),
        _ => Failure::not_found(format!("cannot write to standard output: {error}")),
    })
}

/// Prints a value as JSON, for people.
pub(super) fn print_json(value: &Value) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::not_found(error.to_string()))?;
    print(&(text + "\n"))
}

fn print_yaml(value: &Value) -> Result<(), Failure> {
    print(&serde_yaml_ng::to_string(value).map_err(|error| Failure::not_found(error.to_string()))?)
}

/// What may not be there, written out.
pub(super) fn text(value: Option<&impl Display>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// A number of which 0 is "none".
pub(super) fn number(value: impl Into<u64>) -> String {
    let value = value.into();
    if value == 0 { String::new() } else { value.to_string() }
}

/// Several, with commas between.
pub(super) fn joined(values: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    values.into_iter().map(|value| value.as_ref().to_owned()).collect::<Vec<_>>().join(",")
}

/// Labels, as kubectl writes them.
pub(super) fn labels(labels: impl IntoIterator<Item = (impl Display, impl Display)>) -> String {
    joined(labels.into_iter().map(|(key, value)| format!("{key}={value}")))
}

/// How long something is ago, as kubectl writes it: `4s`, `2m10s`, `3h5m`, `2d4h`.
pub(super) fn age(seconds: f64) -> String {
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

/// The age of what may have none.
pub(super) fn age_of(seconds: Option<f64>) -> String {
    seconds.map(age).unwrap_or_default()
}

/// A colour of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    /// For what is wrong.
    Red,
    /// For what is not as it should be.
    Yellow,
    /// For what is well.
    Green,
    /// For what matters less.
    Faint,
}

/// Text in a colour, if a person reads it: standard output is a terminal, and `NO_COLOR` is not set (no-color.org).
pub(super) fn coloured(text: &str, colour: Colour) -> String {
    let wanted = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let code = match colour {
        Colour::Red => "31",
        Colour::Yellow => "33",
        Colour::Green => "32",
        Colour::Faint => "2",
    };
    if wanted { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_clusters_do_not_speak_to_the_terminal() {
        let said = json!({"name": "x\u{1b}[31m\u{7}\nFAKE", "labels": {"a\u{9b}": ["\tb"]}, "count": 1});
        let expected = json!({"name": "x\u{fffd}[31m\u{fffd} FAKE", "labels": {"a\u{fffd}": [" b"]}, "count": 1});
        assert_eq!(read::<Value>(&said).unwrap(), expected);
        assert_eq!(read::<Value>(&expected).unwrap(), expected);
    }

    #[test]
    fn ages_are_written_as_kubectl_does() {
        let written: Vec<String> = [0.04, 9.94, 59.0, 119.9, 130.0, 3_600.0, 11_100.0, 187_200.0].into_iter().map(age).collect();
        assert_eq!(written, ["0.0s", "9.9s", "59s", "119s", "2m10s", "1h", "3h5m", "2d4h"]);
    }

    #[test]
    fn a_table_has_a_dash_for_what_is_not_there_and_no_blanks_at_the_end() {
        type Named = (&'static str, &'static [(&'static str, &'static str)], Option<u32>);
        const SHAPE: Shape<Named> = Shape {
            columns: &[
                Column::new("NAME", |(name, _, _)| (*name).to_owned()),
                Column::new("LABELS", |(_, pairs, _)| labels(pairs.iter().copied())),
                Column::wide("ID", |(_, _, id)| text(id.as_ref())),
            ],
            name: |(name, _, _)| (*name).to_owned(),
        };
        let items: [Named; 2] = [("paris", &[("a", "1"), ("b", "2")], Some(7)), ("tokyo-1", &[], None)];
        assert_eq!(table(&SHAPE, items, false), "NAME     LABELS\nparis    a=1,b=2\ntokyo-1  -\n");
        assert_eq!(table(&SHAPE, items, true), "NAME     LABELS   ID\nparis    a=1,b=2  7\ntokyo-1  -        -\n");
    }

    #[test]
    fn what_is_no_shape_of_this_version_is_said() {
        let shape: Shape<crate::dto::objects::NodeAddress> = Shape { columns: &[], name: |address| address.ip.clone() };
        assert_eq!(shape.name(&json!({"type": "InternalIP", "ip": "10.0.0.1", "tomorrow": 1})).unwrap(), "10.0.0.1");
        let failure = shape.table(&[json!({"ip": "10.0.0.1"})], false).unwrap_err().to_string();
        assert_eq!(failure, "the answer is not what this version reads (missing field `type`): -o json prints it as it is");
    }
}
