//! Tests that docs/operate/settings.md lists exactly the options of `serve` and `reflect`, and that
//! docs/operate/config.schema.json is their schema.

use clap::{ArgAction, Args as _, Command};

use crate::cli::etcd::reflect::ReflectTargetOptions;
use crate::cli::queries::config::schema_document;
use crate::config::{Settings, options};

const BEGIN: &str = "| flag | variable |";

/// Escapes a table cell: a bar would end it, and text in angle brackets would be markup.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

/// Returns the page's table for the options of a command, in the order of the help text.
fn settings_table(command: &Command) -> String {
    let mut table = "| flag | variable | default | meaning |\n|---|---|---|---|\n".to_owned();
    for option in options(command).filter(|option| !option.is_hide_set()) {
        let long = option.get_long().unwrap();
        let value = match option.get_action() {
            ArgAction::SetTrue => String::new(),
            _ => option.get_value_names().map(|names| format!(" {}", names[0])).unwrap_or_default(),
        };
        let defaults: Vec<String> = option.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
        let default = if defaults.is_empty() || matches!(option.get_action(), ArgAction::SetTrue) {
            String::new()
        } else {
            format!("`{}`", defaults.join(","))
        };
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        let variable = format!("MESHKEEP_{}", long.to_uppercase().replace('-', "_"));
        table += &format!("| `--{long}{value}` | `{variable}` | {} | {} |\n", cell(&default), cell(&help));
    }
    table
}

/// Returns the page with the first table after `from` replaced, and the offset after that table.
fn with_table(page: &str, from: usize, table: &str) -> (String, usize) {
    let start = from + page[from..].find(BEGIN).unwrap();
    let end = page[start..].find("\n\n").map_or(page.len(), |length| start + length + 1);
    (format!("{}{table}{}", &page[..start], &page[end..]), start + table.len())
}

/// With `SETTINGS_WRITE=1` the test writes the page's tables instead.
#[test]
fn the_settings_page_lists_the_options() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/settings.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (expected, after_first) = with_table(&page, 0, &settings_table(&Settings::augment_args(Command::new("serve"))));
    let (expected, _) = with_table(&expected, after_first, &settings_table(&ReflectTargetOptions::augment_args(Command::new("reflect"))));
    if std::env::var_os("SETTINGS_WRITE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == expected,
        "docs/operate/settings.md does not match the options: run this test with SETTINGS_WRITE=1"
    );
}

/// With `SETTINGS_WRITE=1` the test writes the file instead.
#[test]
fn the_schema_file_describes_the_options() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/config.schema.json");
    if std::env::var_os("SETTINGS_WRITE").is_some() {
        std::fs::write(&path, schema_document()).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == schema_document(),
        "docs/operate/config.schema.json does not match the options: run this test with SETTINGS_WRITE=1"
    );
}
