//! `meshkeep openapi`: the document, on standard output.

use std::io::{self, Write};

use crate::runtime::{OpenapiForm, openapi_document};

/// Which document.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(in crate::cli) struct OpenapiOptions {
    /// The version of OpenAPI: 3.1, or 3.0 for generators that know nothing newer
    #[arg(long, value_name = "VERSION", default_value = "3.1")]
    form: Form,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Form {
    #[value(name = "3.1")]
    New,
    #[value(name = "3.0")]
    Old,
}

/// Prints the document.
pub(in crate::cli) fn run(options: OpenapiOptions) -> anyhow::Result<()> {
    let form = match options.form {
        Form::New => OpenapiForm::New,
        Form::Old => OpenapiForm::Old,
    };
    let mut output = io::stdout().lock();
    let printed = writeln!(output, "{}", openapi_document(form).trim_end()).and_then(|()| output.flush());
    Ok(crate::cli::printed(printed)?)
}
