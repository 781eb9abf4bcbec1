//! `meshkeep openapi`: the document, on standard output.

use std::io::{self, Write};

use anyhow::Context;

/// Prints the document.
pub(super) fn run() -> anyhow::Result<()> {
    writeln!(io::stdout(), "{}", crate::runtime::openapi_document().trim_end()).context("cannot write to standard output")
}
