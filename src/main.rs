//! The meshkeep binary: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshkeep::cli::run(std::env::args_os())
}
