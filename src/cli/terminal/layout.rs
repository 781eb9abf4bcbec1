//! Layout of tables and paragraphs in a terminal.
//!
//! A table has one line for each object. Columns that do not fit move below the line of their
//! object. Text breaks only at blanks and after commas: words, addresses and labels stay whole.

use unicode_width::UnicodeWidthStr as _;

use super::colour::{Colour, coloured};
use crate::model::without_colours;

/// Blanks between two columns, the same as kubectl's.
const GAP: &str = "  ";

/// Blanks before a line that belongs to the object above it.
const INDENT: &str = "    ";

/// Additional blanks before the continuation of a line that was wrapped.
const CONTINUATION: &str = "  ";

/// Width from which a cell of several words counts as text: no name or age is as wide.
const TEXT_WIDTH: usize = 30;

/// Columns to print, and the width they may use.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct TableStyle {
    /// True for `-o wide`.
    pub(in crate::cli) wide: bool,
    /// False for `--no-headers`.
    pub(in crate::cli) has_headings: bool,
    /// Width of the terminal in characters; `None` in a pipe, where lines have any length.
    pub(in crate::cli) width: Option<usize>,
}

/// A column of a table, before the layout.
pub(super) struct Heading {
    pub(super) text: String,
    /// True if a terminal shows the column below the line of its object.
    pub(super) below: bool,
}

/// Returns the rows below their headings. Empty cells are dashes. Each line ends with a line feed.
pub(super) fn lay_out_table(headings: &[Heading], rows: &[Vec<String>], style: TableStyle) -> String {
    let TableStyle { has_headings, width, .. } = style;
    let cell_widths = |column: usize| rows.iter().map(move |row| text_width(&row[column]));
    let heading_width = |heading: &Heading| if has_headings { text_width(&heading.text) } else { 1 };
    let widths: Vec<usize> =
        headings.iter().enumerate().map(|(column, heading)| cell_widths(column).fold(heading_width(heading), usize::max)).collect();
    let moved = width.map_or_else(|| vec![false; headings.len()], |width| columns_below(headings, rows, &widths, width));
    let in_line: Vec<usize> = (0..headings.len()).filter(|column| !moved[*column]).collect();
    let mut out = String::new();
    if has_headings {
        let heading_texts: Vec<String> = headings.iter().map(|heading| heading.text.clone()).collect();
        push_row(&mut out, &heading_texts, &in_line, &widths);
    }
    for row in rows {
        push_row(&mut out, row, &in_line, &widths);
        if let Some(width) = width {
            push_details(&mut out, headings, row, &moved, width);
        }
    }
    out
}

/// Returns which columns move below the line of their object: the widest lists and texts first,
/// then the last columns. The first column never moves.
fn columns_below(headings: &[Heading], rows: &[Vec<String>], widths: &[usize], width: usize) -> Vec<bool> {
    let mut moved: Vec<bool> = headings.iter().map(|heading| heading.below).collect();
    let is_long = |column: usize| {
        rows.iter().any(|row| row[column].contains(',') || row[column].contains(' ') && text_width(&row[column]) >= TEXT_WIDTH)
    };
    loop {
        let in_line: Vec<usize> = (0..widths.len()).filter(|column| !moved[*column]).collect();
        let needed = in_line.iter().map(|column| widths[*column] + GAP.len()).sum::<usize>();
        let movable = in_line.get(1..).unwrap_or_default();
        let widest_long = movable.iter().filter(|column| is_long(**column)).max_by_key(|column| widths[**column]);
        match widest_long.or(movable.last()) {
            Some(column) if needed > width + GAP.len() => moved[*column] = true,
            _ => return moved,
        }
    }
}

/// Adds the line of an object, without the columns that moved.
fn push_row(out: &mut String, row: &[String], in_line: &[usize], widths: &[usize]) {
    let mut padding = 0;
    for (position, column) in in_line.iter().enumerate() {
        // a line feed separates the lines that a terminal shows below the object
        let cell = row[*column].replace('\n', " ");
        let cell = if cell.is_empty() { "-" } else { &cell };
        out.push_str(&" ".repeat(padding));
        out.push_str(if position == 0 { "" } else { GAP });
        out.push_str(cell);
        padding = widths[*column].saturating_sub(text_width(cell));
    }
    out.push('\n');
}

/// Adds the columns that moved: as many as fit in one line, each with its heading. The columns that
/// are always below their object have no heading, and begin a new line.
fn push_details(out: &mut String, headings: &[Heading], row: &[String], moved: &[bool], width: usize) {
    let (mut with_heading, mut without_heading) = (Vec::new(), Vec::new());
    for (heading, cell) in
        headings.iter().zip(row).zip(moved).filter(|((_, cell), moved)| **moved && !cell.is_empty()).map(|(pair, _)| pair)
    {
        if heading.below {
            without_heading.extend(cell.split('\n'));
        } else {
            with_heading.push(format!("{} {cell}", coloured(&heading.text, Colour::Faint)));
        }
    }
    let mut line = String::new();
    for detail in with_heading {
        let needed = INDENT.len() + text_width(&line) + GAP.len() + text_width(&detail);
        if line.is_empty() {
            line = detail;
        } else if needed <= width {
            line = line + GAP + &detail;
        } else {
            push_wrapped(out, &line, INDENT, width);
            line = detail;
        }
    }
    for line in std::iter::once(line.as_str()).chain(without_heading).filter(|line| !line.is_empty()) {
        push_wrapped(out, line, INDENT, width);
    }
}

/// Returns a paragraph in lines that fit the width, each after the first one indented.
pub(in crate::cli) fn wrap(text: &str, width: Option<usize>) -> String {
    let mut out = String::new();
    push_wrapped(&mut out, text, "", width.unwrap_or(usize::MAX));
    out
}

/// Adds a text in lines that fit the width. A piece that is wider than a line overflows, so that it
/// can be copied whole.
fn push_wrapped(out: &mut String, text: &str, indent: &str, width: usize) {
    let mut line = indent.to_owned();
    let mut is_empty = true;
    for piece in text.split_inclusive([' ', ',']) {
        if !is_empty && text_width(&line) + text_width(piece.trim_end_matches(' ')) > width {
            out.push_str(line.trim_end_matches(' '));
            out.push('\n');
            line = format!("{indent}{CONTINUATION}");
        }
        line.push_str(piece);
        is_empty = false;
    }
    out.push_str(line.trim_end_matches(' '));
    out.push('\n');
}

/// Returns the number of terminal columns that a text occupies.
fn text_width(text: &str) -> usize {
    without_colours(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headings(texts: &[(&str, bool)]) -> Vec<Heading> {
        texts.iter().map(|(text, below)| Heading { text: (*text).to_owned(), below: *below }).collect()
    }

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_that_do_not_fit_move_below_their_row() {
        let headings = headings(&[("NAME", false), ("ADDRESSES", false), ("ID", false), ("ERROR", true)]);
        let rows = rows(&[&["paris", "10.0.0.1,fd00::1", "1", "no route to\n-> check it"], &["東京", "", "2", ""]]);
        let text = |width| lay_out_table(&headings, &rows, TableStyle { wide: false, has_headings: true, width });
        let piped = "NAME   ADDRESSES         ID  ERROR\n\
                     paris  10.0.0.1,fd00::1  1   no route to -> check it\n\
                     東京   -                 2   -\n";
        assert_eq!(text(None), piped);
        let wide = "NAME   ADDRESSES         ID\n\
                    paris  10.0.0.1,fd00::1  1\n    no route to\n    -> check it\n\
                    東京   -                 2\n";
        assert_eq!(text(Some(27)), wide);
        let narrow = "NAME   ID\n\
                      paris  1\n    ADDRESSES\n      10.0.0.1,\n      fd00::1\n    no route to\n    -> check it\n\
                      東京   2\n";
        assert_eq!(without_colours(&text(Some(16))), narrow);
        let too_narrow = "NAME\nparis\n    ADDRESSES\n      10.0.0.1,\n      fd00::1\n    ID 1\n    no\n      route\n      to\n    ->\n      check\n      it\n\
                          東京\n    ID 2\n";
        assert_eq!(without_colours(&text(Some(8))), too_narrow);
        let without_headings = lay_out_table(
            &headings[1..3],
            &[vec![String::new(), "1".to_owned()]],
            TableStyle { wide: false, has_headings: false, width: None },
        );
        assert_eq!(without_headings, "-  1\n");
    }

    #[test]
    fn text_breaks_only_at_blanks_and_commas() {
        assert_eq!(wrap("one two,three four", Some(8)), "one two,\n  three\n  four\n");
        assert_eq!(wrap("https://a.long.example:2379 is down", Some(8)), "https://a.long.example:2379\n  is\n  down\n");
        let red = coloured("red", Colour::Red);
        assert_eq!(wrap(&format!("a {red} b"), Some(7)), format!("a {red} b\n"), "colours have no width");
        assert_eq!(wrap("one two", None), "one two\n");
    }
}
