//! `meshkeep openapi`: the document, on standard output.

use std::io::{self, Write};

/// Prints the document.
pub(super) fn run() -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    let printed = writeln!(output, "{}", crate::runtime::openapi_document().trim_end()).and_then(|()| output.flush());
    Ok(super::printed(printed)?)
}
