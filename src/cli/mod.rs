//! The command line: one file for each command.
//!
//! Owns: the names of the commands and the exit codes: 0 fine, 1 failed, 2 used wrongly, and for `store` 3 in use. Deliberately lacks: the options of `serve`
//! (`config` has them).

mod openapi;
mod serve;
mod store;

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use rustix::fs::Mode;
use rustix::process::umask;

use crate::config::{Settings, UsageError};

/// The exit code of a command that was used wrongly, as clap and most of Unix have it.
const EXIT_USAGE: u8 = 2;

/// A warm mirror of Cilium ClusterMesh state: nodes, services, identities and ipcache over HTTP
#[derive(Debug, Parser)]
#[command(name = "meshkeep", version, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Mirror the remote clusters and serve what they say
    #[command(
        after_help = "Each option is also an environment variable (--data-dir is MESHKEEP_DATA_DIR; several values are separated by \
                            commas) and a key of the --config file (data-dir). The command line is strongest, the file weakest."
    )]
    Serve(Box<Settings>),
    /// Print the OpenAPI document of the HTTP API
    Openapi,
    /// Look at what is stored while meshkeep does not run
    #[command(subcommand)]
    Store(store::StoreCommand),
}

/// Runs the command that the arguments name; the first is the program's own name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    // whatever is created from here on is its owner's alone, also what sled creates; a unix socket gets its mode when it is bound
    umask(Mode::RWXG | Mode::RWXO);
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match parse(&arguments) {
        Ok(CliCommand::Serve(settings)) => end(serve::run(*settings)),
        Ok(CliCommand::Openapi) => end(openapi::run()),
        Ok(CliCommand::Store(command)) => store::run(&command),
        Err(error) => refuse(&error),
    }
}

/// Reads the arguments. `serve` takes what they leave out from the environment and its config file.
fn parse(arguments: &[OsString]) -> Result<CliCommand, UsageError> {
    let mut command = Cli::command();
    command.build();
    if let (Some(name), Some(serve)) = (arguments.get(1), command.find_subcommand("serve"))
        && *name == *serve.get_name()
    {
        let environment = |name: &str| std::env::var(name).ok();
        return Settings::resolve(serve, &arguments[1..], environment).map(|settings| CliCommand::Serve(Box::new(settings)));
    }
    let matches = command.try_get_matches_from(arguments)?;
    Ok(Cli::from_arg_matches(&matches)?.command)
}

/// The exit code of a command that ran.
fn end(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The exit code of a command that could not be understood, or of a request for help.
fn refuse(error: &UsageError) -> ExitCode {
    match error {
        UsageError::Arguments { error, origin: None } => {
            // A closed pipe is no reason to fail.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE))
        }
        UsageError::Arguments { .. } => {
            eprint!("{error}");
            ExitCode::from(EXIT_USAGE)
        }
        UsageError::ConfigFile { .. } | UsageError::NotASwitch { .. } | UsageError::Conflict(_) => {
            complain(error);
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn complain(message: &dyn Display) {
    eprintln!("error: {message}");
}
