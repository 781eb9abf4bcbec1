//! `meshkeep openapi`: prints the OpenAPI document.

use std::io::Write as _;

use crate::cli::failure::{Outcome, Verdict};
use crate::cli::terminal::output;
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

pub(in crate::cli) fn run(options: OpenapiOptions) -> Outcome {
    let form = match options.form {
        Form::New => OpenapiForm::New,
        Form::Old => OpenapiForm::Old,
    };
    let document = openapi_document(form);
    output::print_whole(|out| writeln!(out, "{}", document.trim_end()))?;
    Ok(Verdict::Fine)
}
