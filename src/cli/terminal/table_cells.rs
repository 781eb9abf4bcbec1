//! Headings and rows of a table, from this version's columns or from the user's.

use serde_json::Value;

use super::json_path::{JsonPath, value_text};
use super::layout::{Heading, TableStyle, lay_out_table};
use crate::model::printable;

/// Cell of a custom column without a value, the same as kubectl's.
const NO_VALUE: &str = "<none>";

/// Headings and rows of a table, before its layout.
pub(in crate::cli) struct TableCells {
    pub(super) headings: Vec<Heading>,
    pub(super) rows: Vec<Vec<String>>,
}

impl TableCells {
    /// Returns the table. Each line ends with a line feed.
    pub(in crate::cli) fn text(&self, style: TableStyle) -> String {
        lay_out_table(&self.headings, &self.rows, style)
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
            headings: self.0.iter().map(|(heading, _)| Heading { text: heading.clone(), below: false }).collect(),
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
        let style = TableStyle { wide: false, has_headings: true, width: None };
        assert_eq!(columns.cells(&items).text(style), expected);
        let error = CustomColumns::parse("NAME").unwrap_err();
        assert!(error.starts_with(r#""NAME" is not a column: write custom-columns=HEADING:PATH"#), "{error}");
        assert!(CustomColumns::parse("NAME:..a").unwrap_err().contains("is not a supported path"));
    }
}
