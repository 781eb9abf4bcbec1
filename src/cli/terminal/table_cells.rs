//! Headings and rows of a table, from this version's columns or from the user's, and their layout.

use std::io::{self, IsTerminal as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use super::json_path::{JsonPath, value_text};
use crate::model::printable;

/// Padding left and right of a column, the same as kubectl's.
const COLUMN_PADDING: (u16, u16) = (0, 2);

/// Cell of a custom column without a value, the same as kubectl's.
const NO_VALUE: &str = "<none>";

/// Headings and rows of a table, before its layout.
pub(in crate::cli) struct TableCells {
    pub(super) headings: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl TableCells {
    /// Returns the table. Each line ends with a line feed.
    pub(in crate::cli) fn text(&self, has_headings: bool) -> String {
        if self.rows.is_empty() && !has_headings {
            return String::new();
        }
        let mut table = Table::new();
        // lines in a pipe are not wrapped, because programs split them at blanks and not at a width
        let arrangement = if io::stdout().is_terminal() { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
        table.load_preset(presets::NOTHING).set_content_arrangement(arrangement);
        if has_headings {
            table.set_header(&self.headings);
        }
        let mut has_blanks = vec![false; self.headings.len()];
        for row in &self.rows {
            let cells = row.iter().zip(&mut has_blanks).map(|(cell, has_blanks)| {
                *has_blanks |= cell.contains(' ');
                if cell.is_empty() { "-" } else { cell.as_str() }
            });
            table.add_row(cells.collect::<Vec<&str>>());
        }
        for (column, has_blanks) in table.column_iter_mut().zip(has_blanks) {
            column.set_padding(COLUMN_PADDING);
            // a narrow terminal then wraps lists of labels and addresses at their commas
            if !has_blanks {
                column.set_delimiter(',');
            }
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// Columns that the user chose: a heading and a path for each.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct CustomColumns(Vec<(String, JsonPath)>);

impl CustomColumns {
    /// Parses the text after `custom-columns=`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let column = |text: &str| {
            let (heading, path) = text.split_once(':').filter(|(heading, _)| !heading.is_empty()).ok_or_else(|| {
                format!("{text:?} is not a column: write custom-columns=HEADING:PATH,HEADING:PATH, such as custom-columns=NAME:.name")
            })?;
            Ok((heading.to_owned(), JsonPath::parse_relaxed(path)?))
        };
        text.split(',').map(column).collect::<Result<_, String>>().map(Self)
    }

    pub(super) fn cells(&self, items: &[Value]) -> TableCells {
        let cell = |path: &JsonPath, item: &Value| {
            let texts: Vec<String> = path.values(item).into_iter().filter(|value| !value.is_null()).map(value_text).collect();
            if texts.is_empty() { NO_VALUE.to_owned() } else { one_line(&texts.join(",")) }
        };
        TableCells {
            headings: self.0.iter().map(|(heading, _)| heading.clone()).collect(),
            rows: items.iter().map(|item| self.0.iter().map(|(_, path)| cell(path, item)).collect()).collect(),
        }
    }
}

/// Escapes a text from a remote source so that it fits into one line.
pub(in crate::cli) fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn custom_columns_are_paths_with_headings() {
        let items = [json!({"name": "a", "ips": ["10.0.0.1", "fd00::1"], "zone": null}), json!({"name": "x\u{1b}[31m\nFAKE"})];
        let columns = CustomColumns::parse("NAME:.name,IPS:{.ips[*]},ZONE:zone").unwrap();
        let expected = "NAME              IPS               ZONE\n\
                        a                 10.0.0.1,fd00::1  <none>\n\
                        x\\u001b[31m FAKE  <none>            <none>\n";
        assert_eq!(columns.cells(&items).text(true), expected);
        let error = CustomColumns::parse("NAME").unwrap_err();
        assert!(error.starts_with(r#""NAME" is not a column: write custom-columns=HEADING:PATH"#), "{error}");
        assert!(CustomColumns::parse("NAME:..a").unwrap_err().contains("is not a supported path"));
    }
}
