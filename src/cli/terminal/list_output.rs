//! Options of lists with kubectl's names: `--no-headers` and `--sort-by`.

use std::cmp::Ordering;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::change_age::newest_change;
use super::json_path::{JsonPath, value_text};
use super::layout::TableStyle;
use super::output::{OutputFormat, OutputOptions, Tabular, print_items, print_one, table_style};
use super::past_notes::PastSummary;
use super::table_cells::TableCells;
use crate::cli::failure::Failure;

/// Errors if no item has a value to sort by.
const NO_VALUE: &str = "--sort-by: no item has a value at this path; -o json shows the members of the items";
const NO_CHANGE: &str = "--sort-by age: no item has the time of its last change; give a path, such as .name";

#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ListOptions {
    #[command(flatten)]
    output: OutputOptions,
    /// Print a table without its headings
    #[arg(long)]
    no_headers: bool,
    /// Sort a list by the value at this JSONPath, such as .name or '{.meta.ageSeconds}', or by
    /// `age`: the last change first
    #[arg(long, value_name = "PATH", value_parser = ListOrder::parse)]
    sort_by: Option<ListOrder>,
}

/// Order of a list.
#[derive(Debug, Clone)]
enum ListOrder {
    /// By the time of the last change, newest first.
    Age,
    /// By the value at a path.
    Path(JsonPath),
}

impl ListOrder {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "age" { Ok(Self::Age) } else { JsonPath::parse_relaxed(text).map(Self::Path) }
    }
}

impl ListOptions {
    pub(in crate::cli) fn format(&self) -> OutputFormat {
        self.output.output
    }

    /// Returns the style of a table on standard output.
    pub(in crate::cli) fn table_style(&self) -> TableStyle {
        TableStyle { has_headings: !self.no_headers, ..table_style(self.format()) }
    }

    /// Returns whether the user chose the order of the list.
    pub(in crate::cli) fn has_order(&self) -> bool {
        self.sort_by.is_some()
    }

    /// Returns the text of a table.
    pub(in crate::cli) fn table_text(&self, cells: &TableCells) -> String {
        cells.text(self.table_style())
    }

    /// Prints a list. An empty table is only a note on standard error, as in kubectl.
    pub(in crate::cli) fn print_list(&self, shape: &dyn Tabular, items: Vec<Value>) -> Result<(), Failure> {
        self.print_list_at(shape, items, None)
    }

    /// Prints a list about an earlier time, with the ages at that time. JSON, YAML and JSONPath
    /// have `meta`. All formats but JSON and YAML have notes on standard error about what is not
    /// known.
    pub(in crate::cli) fn print_past_list(&self, shape: &dyn Tabular, items: Vec<Value>, past: &PastSummary) -> Result<(), Failure> {
        let format = self.format();
        if matches!(format, OutputFormat::Json | OutputFormat::Yaml | OutputFormat::JsonPath(_)) {
            let mut document = json!({ "meta": past });
            document["items"] = Value::Array(self.sorted(items)?);
            print_one(format, shape, &document)?;
        } else {
            self.print_list_at(shape, items, past.at())?;
        }
        if !format.is_whole_answer() {
            crate::cli::print_to_stderr(past.notes());
        }
        Ok(())
    }

    /// Prints a list with the ages at the time that it describes: `at` of its `meta`, or now.
    fn print_list_at(&self, shape: &dyn Tabular, items: Vec<Value>, at: Option<&str>) -> Result<(), Failure> {
        if items.is_empty() && self.format().is_table() {
            crate::cli::print_to_stderr("none found\n".to_owned());
            return Ok(());
        }
        print_items(self.format(), !self.no_headers, shape, &self.sorted(items)?, described_time(at))
    }

    /// Prints an answer about one object, with its age at the time that the answer describes.
    pub(in crate::cli) fn print_one(&self, shape: &dyn Tabular, item: &Value) -> Result<(), Failure> {
        match self.format() {
            format @ (OutputFormat::Json | OutputFormat::Yaml | OutputFormat::JsonPath(_)) => print_one(format, shape, item),
            format => {
                let time = described_time(item["meta"]["at"].as_str());
                print_items(format, !self.no_headers, shape, std::slice::from_ref(item), time)
            }
        }
    }

    /// Sorts a list by `--sort-by`. Items without the value are first, those without an age last.
    pub(in crate::cli) fn sorted(&self, items: Vec<Value>) -> Result<Vec<Value>, Failure> {
        match &self.sort_by {
            None => Ok(items),
            Some(ListOrder::Age) => sorted_by(items, newest_change, NO_CHANGE, |one, other| other.cmp(one)),
            Some(ListOrder::Path(path)) => {
                let value_of = |item: &Value| path.values(item).first().map(|value| (*value).clone());
                sorted_by(items, value_of, NO_VALUE, |one, other| match (one, other) {
                    (Some(one), Some(other)) => compare(one, other),
                    _ => one.is_some().cmp(&other.is_some()),
                })
            }
        }
    }
}

/// Returns the time that an answer describes: `at` of its `meta`, or now.
fn described_time(at: Option<&str>) -> Timestamp {
    at.and_then(|at| at.parse().ok()).unwrap_or_else(Timestamp::now)
}

/// Sorts items by their keys. Fails with `missing` if no item has a key.
fn sorted_by<K>(
    items: Vec<Value>,
    key_of: impl Fn(&Value) -> Option<K>,
    missing: &str,
    order: impl Fn(&Option<K>, &Option<K>) -> Ordering,
) -> Result<Vec<Value>, Failure> {
    let mut keyed: Vec<(Option<K>, Value)> = items.into_iter().map(|item| (key_of(&item), item)).collect();
    if !keyed.is_empty() && keyed.iter().all(|(key, _)| key.is_none()) {
        return Err(Failure::usage(missing));
    }
    keyed.sort_by(|(one, _), (other, _)| order(one, other));
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

/// Compares two values: numbers by value, other values by their text, in natural order. Numbers
/// precede other values, because a sort panics if the order contradicts itself.
fn compare(one: &Value, other: &Value) -> Ordering {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => compare_naturally(&value_text(one), &value_text(other)),
    }
}

/// Compares texts in the order that kubectl uses: numbers inside them count as numbers, so that
/// `worker-2` precedes `worker-10`.
fn compare_naturally(mut one: &str, mut other: &str) -> Ordering {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    loop {
        let (count, other_count) = (digits(one), digits(other));
        if count > 0 && other_count > 0 {
            let (number, rest) = one.split_at(count);
            let (other_number, other_rest) = other.split_at(other_count);
            let (number, other_number) = (number.trim_start_matches('0'), other_number.trim_start_matches('0'));
            match number.len().cmp(&other_number.len()).then_with(|| number.cmp(other_number)) {
                Ordering::Equal => (one, other) = (rest, other_rest),
                order => return order,
            }
            continue;
        }
        let (mut letters, mut other_letters) = (one.chars(), other.chars());
        match (letters.next(), other_letters.next()) {
            (Some(letter), Some(other_letter)) if letter == other_letter => (one, other) = (letters.as_str(), other_letters.as_str()),
            (letter, other_letter) => return letter.cmp(&other_letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sorted(path: &str, items: Vec<Value>) -> Result<Vec<Value>, String> {
        let output = OutputOptions { output: OutputFormat::Table };
        let options = ListOptions { output, no_headers: false, sort_by: Some(ListOrder::parse(path).unwrap()) };
        options.sorted(items).map_err(|failure| failure.to_string())
    }

    #[test]
    fn lists_are_sorted_as_kubectl_does() {
        let names = |order: [&str; 4]| order.map(|name| json!({ "name": name })).to_vec();
        let sorted_names = sorted(".name", names(["worker-10", "worker-2", "10.0.10.1", "10.0.9.1"])).unwrap();
        assert_eq!(sorted_names, names(["10.0.9.1", "10.0.10.1", "worker-2", "worker-10"]));
        let counts = vec![json!({"n": 9.5}), json!({"n": 10}), json!({"other": 1}), json!({"n": -1})];
        let expected = [json!({"other": 1}), json!({"n": -1}), json!({"n": 9.5}), json!({"n": 10})];
        assert_eq!(sorted("{.n}", counts).unwrap(), expected);
        let mixed = vec![json!({"n": "-1.5"}), json!({"n": -1}), json!({"n": -2})];
        assert_eq!(sorted(".n", mixed).unwrap(), [json!({"n": -2}), json!({"n": -1}), json!({"n": "-1.5"})]);
        let changes = |order: [u32; 3]| order.map(|hour| json!({"changedAt": format!("2026-01-01T{hour:02}:00:00Z")})).to_vec();
        assert_eq!(sorted("age", changes([10, 12, 11])).unwrap(), changes([12, 11, 10]));
        let error = sorted(".nope", names(["a", "b", "c", "d"])).unwrap_err();
        assert_eq!(error, "--sort-by: no item has a value at this path; -o json shows the members of the items");
        let error = sorted("age", names(["a", "b", "c", "d"])).unwrap_err();
        assert_eq!(error, "--sort-by age: no item has the time of its last change; give a path, such as .name");
        assert_eq!(sorted(".nope", Vec::new()).unwrap(), Vec::<Value>::new());
    }
}
