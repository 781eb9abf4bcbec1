//! `meshkeep openapi`: prints the OpenAPI document.

use std::io::Write as _;

use crate::cli::failure::{CommandResult, ExitStatus};
use crate::cli::terminal::output;
use crate::runtime::{DocumentVersion, openapi_document};

#[derive(Debug, Clone, Copy, clap::Args)]
pub(in crate::cli) struct OpenapiOptions {
    /// Version of OpenAPI: 3.1, or 3.0 for older generators
    #[arg(long, value_name = "VERSION", default_value = "3.1")]
    form: OpenapiVersion,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum OpenapiVersion {
    #[value(name = "3.1")]
    V31,
    #[value(name = "3.0")]
    V30,
}

pub(in crate::cli) fn run(options: OpenapiOptions) -> CommandResult {
    let form = match options.form {
        OpenapiVersion::V31 => DocumentVersion::V31,
        OpenapiVersion::V30 => DocumentVersion::V30,
    };
    let document = openapi_document(form);
    output::print_document(|out| writeln!(out, "{}", document.trim_end()))?;
    Ok(ExitStatus::Success)
}
