//! The command line: one file for each command.
//!
//! Each command returns a `CommandResult` (`failure`), which determines its exit code. `queries`
//! has the commands that query a running sidecar over its HTTP API, `compare` those that compare
//! its answers with something else, `mcp` the server for assistants, `etcd` the commands that write
//! to an etcd, and `local` the others. The options of `serve` are in `config`.

mod compare;
mod etcd;
mod failure;
mod local;
mod mcp;
mod queries;
mod terminal;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand};
use rustix::fs::Mode;
use rustix::process::umask;

use self::failure::{CommandResult, EXIT_USAGE, ResultExt as _};
use self::queries::api_client::ServerOptions;
use self::queries::api_client::connection_words::move_behind_command;
use crate::config::{Setting, Settings, UsageError};
use crate::model::{printable, readable_error, redact_url_secrets, redact_urls};
use crate::runtime::StartSignals;

/// Commands that run until a signal stops them.
const LONG_COMMANDS: [&str; 5] = ["serve", "reflect", "announce", "demo", "load"];

/// Stack size of the thread that runs the command: Linux's default for the first thread of a
/// process.
const STACK_BYTES: usize = 8 << 20;

/// Exit code of a process whose first thread panics (std).
const EXIT_PANICKED: u8 = 101;

/// Start of the message for a failed installation of signal handlers.
const NO_SIGNALS: &str = "cannot handle signals";

/// Start of the message for a failed start of the async runtime.
const NO_RUNTIME: &str = "cannot start the async runtime";

/// Maximum time that an exiting process waits until its error message is written. A pipe buffers 64
/// KiB (pipe(7)), so this matters only if its reader has stopped reading.
const PRINT_TIME_MAX: Duration = Duration::from_secs(1);

/// A warm mirror of Cilium ClusterMesh state: nodes, services, identities and ipcache over HTTP
#[derive(Debug, Parser)]
#[command(name = "meshkeep", version = env!("MESHKEEP_VERSION"), subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Mirror the remote clusters and serve their state
    #[command(
        after_help = "Each option is also an environment variable (MESHKEEP_DATA_DIR for --data-dir, several values separated by commas) and a key of the --config file (data-dir). The command line takes precedence over the variable, and the variable over the file."
    )]
    Serve(Box<Settings>),
    /// Mirror and serve, and also write the mirror into an etcd, as a KVStoreMesh does
    #[command(
        after_help = "reflect has all options of serve too. If several meshkeeps reflect into one etcd, one of them writes, and another one takes over when it ends."
    )]
    Reflect(Box<etcd::reflect::ReflectSettings>),
    /// Show the state of a running meshkeep and of each cluster; exit code 1 while a cluster is not
    /// live
    Status(QueryArgs<queries::status::StatusOptions>),
    /// List objects, or show one object
    Get(QueryArgs<queries::get::GetOptions>),
    /// Find objects of all kinds by a part of a name, a pod, a label or an address
    Find(QueryArgs<queries::find::FindOptions>),
    /// Look up an address: show the entry that an agent would use (longest prefix)
    Lookup(QueryArgs<queries::lookup::LookupOptions>),
    /// Explain an address or a CIDR: every entry that covers it, which one wins and why, what is
    /// behind it, and its problems
    Explain(QueryArgs<queries::explain::ExplainOptions>),
    /// Show the versions of an address, a pod, an identity, a node or a key, newest first
    History(QueryArgs<compare::history::VersionQueryOptions>),
    /// Compare a table of one agent with the mirror: show what it lacks, what it has in addition
    /// and what differs, and why; exit code 1 if anything differs
    Diff(QueryArgs<compare::diff::DiffOptions>),
    /// Show what changes for other clusters if a cluster or a namespace leaves the mesh
    Impact(QueryArgs<compare::impact::ImpactOptions>),
    /// Follow changes, one line per change
    Watch(QueryArgs<queries::watch::WatchOptions>),
    /// Compare the mirror with the etcds of the clusters, or with another meshkeep; exit code 1 if
    /// anything differs
    Verify(QueryArgs<compare::verify::VerifyOptions>),
    /// List the problems in the mesh, with advice
    Problems(QueryArgs<queries::problems::ProblemsOptions>),
    /// List the values that meshkeep rejected, with the reasons
    Rejected(QueryArgs<queries::entries::RejectedOptions>),
    /// List the raw entries, or print the bytes of one
    Entries(QueryArgs<queries::entries::EntriesOptions>),
    /// Print the newest log lines of a running meshkeep, at most 1,000
    #[command(visible_alias = "logs")]
    Log(QueryArgs<queries::process::LogOptions>),
    /// Show the settings of a running meshkeep, and where each value comes from
    Config(QueryArgs<queries::config::ConfigOptions>),
    /// Check whether a running meshkeep is ready, for exec probes
    Healthcheck(QueryArgs<queries::healthcheck::HealthcheckOptions>),
    /// Collect diagnostic data of a running meshkeep in one tar: status, problems, metrics,
    /// settings, log; no secrets
    Bundle(QueryArgs<queries::bundle::BundleOptions>),
    /// Answer an assistant over the Model Context Protocol, on standard input and output, from a
    /// running meshkeep (docs/use/mcp.md)
    Mcp(ServerOptions),
    /// Run a demo: mirror and serve three simulated clusters; needs no other server
    Demo(local::demo::Options),
    /// Serve a dump of an etcd or of a meshkeep, without any etcd, for lookups without access to
    /// the clusters
    Load(local::load::Options),
    /// Test each step of the connection to each remote cluster; needs no running meshkeep
    Doctor(local::doctor::Options),
    /// Publish a cluster of machines outside Kubernetes from files, as a clustermesh-apiserver does
    /// (docs/operate/announce.md)
    Announce(etcd::announce::Options),
    /// List, look up, allocate, release and collect identities in an etcd
    #[command(subcommand)]
    Identity(etcd::identity::IdentityCommand),
    /// Print the OpenAPI document of the HTTP API
    Openapi(local::openapi::OpenapiOptions),
    /// Inspect the store while meshkeep does not run
    #[command(subcommand)]
    Store(local::store::StoreCommand),
    /// Read, write and lock keys in any etcd, by its client file; needs no running meshkeep
    #[command(subcommand)]
    Kvstore(etcd::kvstore::KvstoreCommand),
    /// Print the version of this command, and of a running meshkeep
    Version(QueryArgs<queries::process::VersionOptions>),
    /// Print a completion script, for instance into `source`; it asks a running meshkeep for the
    /// names of clusters
    Completion {
        /// The shell
        #[arg(value_parser = PossibleValuesParser::new(local::completion::shell_names()))]
        shell: String,
    },
    /// Print the manual page, for instance into `man -l -`
    Man,
}

/// Returns the description of all commands, for the parser, the help and the completion. The
/// connection options are also allowed before the command ([`move_behind_command`]).
fn describe_commands() -> clap::Command {
    ServerOptions::augment_args(Cli::command())
}

/// Options of a command that queries a running sidecar.
#[derive(Debug, clap::Args)]
struct QueryArgs<O: clap::Args> {
    #[command(flatten)]
    options: O,
    #[command(flatten)]
    server: ServerOptions,
}

/// Runs the command that the arguments name. The first argument is the program's own name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(options) = local::kubectl::parse_plugin(&arguments) {
        return options.map_or_else(|error| report_usage_error(&error.into()), |options| finish(local::kubectl::run(&options)));
    }
    if let Some(outcome) = local::completion::answer_script(&arguments, describe_commands) {
        return finish(outcome);
    }
    let arguments = move_behind_command(arguments);
    let is_long = arguments.get(1).and_then(|name| name.to_str()).is_some_and(|name| LONG_COMMANDS.contains(&name));
    if !is_long {
        return run_with(&arguments, None);
    }
    // before anything else: no signal may end the process while it starts, not even while it reads
    // the arguments
    let start = match StartSignals::install().or_fail(NO_SIGNALS) {
        Ok(start) => start,
        Err(failure) => return finish(Err(failure)),
    };
    // The kernel delivers a signal to the first thread, which therefore does nothing else: a thread
    // that reads from an unreachable network share would run no handler before that read returns.
    let builder = std::thread::Builder::new().name("main".into()).stack_size(STACK_BYTES);
    match builder.spawn(move || run_with(&arguments, Some(start))).or_fail("cannot start a thread") {
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(EXIT_PANICKED)),
        Err(failure) => finish(Err(failure)),
    }
}

fn run_with(arguments: &[OsString], start: Option<StartSignals>) -> ExitCode {
    // every file created from here on is readable by its owner only, including sled's; a unix
    // socket gets its mode when it is bound
    umask(Mode::RWXG | Mode::RWXO);
    match parse(arguments) {
        Ok((command, effective_settings)) => finish(execute(command, effective_settings, start)),
        Err(error) => report_usage_error(&error),
    }
}

/// Runs a command. Commands that are not in [`LONG_COMMANDS`] keep the default action of signals,
/// which ends the process.
fn execute(command: CliCommand, effective_settings: Vec<Setting>, start: Option<StartSignals>) -> CommandResult {
    let start_signals = || start.map_or_else(StartSignals::install, Ok).or_fail(NO_SIGNALS);
    match command {
        CliCommand::Serve(settings) => {
            let warnings = warnings("serve", &settings);
            local::serve::run(*settings, effective_settings, &warnings, None, &start_signals()?)
        }
        CliCommand::Reflect(reflect) => {
            let warnings = warnings("reflect", &reflect.settings);
            let target = reflect.to.options()?;
            local::serve::run(reflect.settings, effective_settings, &warnings, Some(target), &start_signals()?)
        }
        CliCommand::Announce(options) => etcd::announce::run(options, &start_signals()?),
        CliCommand::Demo(options) => local::demo::run(&options, &start_signals()?),
        CliCommand::Load(options) => local::load::run(options, &start_signals()?),
        CliCommand::Status(args) => block_on(queries::status::run(&args.options, &args.server)),
        CliCommand::Get(args) => block_on(queries::get::run(&args.options, &args.server)),
        CliCommand::Find(args) => block_on(queries::find::run(&args.options, &args.server)),
        CliCommand::Lookup(args) => block_on(queries::lookup::run(&args.options, &args.server)),
        CliCommand::Explain(args) => block_on(queries::explain::run(&args.options, &args.server)),
        CliCommand::History(args) => block_on(compare::history::run(&args.options, &args.server)),
        CliCommand::Diff(args) => block_on(compare::diff::run(&args.options, &args.server)),
        CliCommand::Impact(args) => block_on(compare::impact::run(&args.options, &args.server)),
        CliCommand::Watch(args) => block_on(queries::watch::run(&args.options, &args.server)),
        CliCommand::Verify(args) => block_on(compare::verify::run(&args.options, &args.server)),
        CliCommand::Problems(args) => block_on(queries::problems::run(&args.options, &args.server)),
        CliCommand::Rejected(args) => block_on(queries::entries::run_rejected(&args.options, &args.server)),
        CliCommand::Entries(args) => block_on(queries::entries::run(&args.options, &args.server)),
        CliCommand::Log(args) => block_on(queries::process::run_log(&args.options, &args.server)),
        CliCommand::Version(args) => block_on(queries::process::run_version(&args.options, &args.server)),
        CliCommand::Config(args) => block_on(queries::config::run(&args.options, &args.server)),
        CliCommand::Healthcheck(args) => block_on(queries::healthcheck::run(&args.options, &args.server)),
        CliCommand::Bundle(args) => block_on(queries::bundle::run(&args.options, &args.server)),
        CliCommand::Mcp(server) => block_on(mcp::run(&server)),
        CliCommand::Doctor(options) => block_on(local::doctor::run(&options)),
        CliCommand::Identity(command) => block_on(etcd::identity::run(&command)),
        CliCommand::Kvstore(command) => block_on(etcd::kvstore::run(&command)),
        CliCommand::Openapi(options) => local::openapi::run(options),
        CliCommand::Store(command) => local::store::run(&command),
        CliCommand::Completion { shell } => local::completion::print_script(&shell),
        CliCommand::Man => local::manual::man(describe_commands()),
    }
}

fn block_on(command: impl Future<Output = CommandResult>) -> CommandResult {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().or_fail(NO_RUNTIME)?;
    let outcome = executor.block_on(command);
    // a thread that reads standard input does not end before its input does
    executor.shutdown_background();
    outcome
}

/// Returns warnings about the settings for the person who starts the sidecar.
fn warnings(name: &str, settings: &Settings) -> Vec<String> {
    let variables: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    let mut command = Cli::command();
    command.build();
    let command = command.find_subcommand(name).cloned().unwrap_or_default();
    settings.warnings(&command, variables.iter().map(String::as_str))
}

/// Prints the error of a command, if it failed, and returns its exit code.
fn finish(outcome: CommandResult) -> ExitCode {
    match outcome {
        Ok(status) => status.code(),
        Err(failure) => {
            let text = failure.to_string();
            if !text.is_empty() {
                print_error(&text);
            }
            failure.code()
        }
    }
}

/// Parses the arguments. For `serve` and `reflect`, also reads missing options from the environment
/// and the config file, and returns the effective settings; for other commands, that list is empty.
fn parse(arguments: &[OsString]) -> Result<(CliCommand, Vec<Setting>), UsageError> {
    let mut command = describe_commands();
    command.build();
    if let (Some(name), Some(serve)) = (arguments.get(1), command.find_subcommand("serve"))
        && *name == *serve.get_name()
    {
        let environment = |name: &str| std::env::var(name).ok();
        let resolved = Settings::resolve(serve, &arguments[1..], environment);
        return resolved.map(|(settings, effective_settings)| (CliCommand::Serve(Box::new(settings)), effective_settings));
    }
    if let (Some(name), Some(reflect)) = (arguments.get(1), command.find_subcommand("reflect"))
        && *name == *reflect.get_name()
    {
        let environment = |name: &str| std::env::var(name).ok();
        let (settings, to, effective_settings) =
            Settings::resolve_with::<etcd::reflect::ReflectTargetOptions>(reflect, &arguments[1..], environment)?;
        return Ok((CliCommand::Reflect(Box::new(etcd::reflect::ReflectSettings { settings, to: to.check()? })), effective_settings));
    }
    let matches = command.try_get_matches_from(arguments)?;
    Ok((Cli::from_arg_matches(&matches)?.command, Vec::new()))
}

/// Prints why arguments cannot be parsed, or the help that they request. Returns the exit code.
fn report_usage_error(error: &UsageError) -> ExitCode {
    match error {
        UsageError::Arguments(error) => {
            print_usage_error(error);
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE))
        }
        UsageError::Value { .. } | UsageError::ConfigFile { .. } | UsageError::NotASwitch { .. } | UsageError::Conflict(_) => {
            print_error(error);
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Prints clap's message. An error may repeat what the user typed, so secrets in URLs are removed
/// from it.
fn print_usage_error(error: &clap::Error) {
    let text = error.render().to_string();
    let shown = redact_urls(&text);
    if error.use_stderr() && (shown != text || printable(&text) != text) {
        print_to_stderr(shown.into_owned());
    } else {
        // a closed pipe is not a failure
        let _ = error.print();
    }
}

fn print_error(message: &dyn Display) {
    print_to_stderr(format!("error: {message}\n"));
}

/// Prints a warning about a probable mistake.
fn print_warning(message: &str) {
    print_to_stderr(format!("warning: {message}\n"));
}

/// Prints a message to standard error. Secrets in URLs are removed, and characters that control the
/// terminal are escaped. A message that cannot be written, or is not read in time, is lost: it must
/// not change the exit code.
fn print_to_stderr(text: String) {
    let text = printable(&redact_url_secrets(&readable_error(text))).into_owned();
    // the thread sends `()` once the message is written
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let _ = io::stderr().write_all(text.as_bytes());
        let _ = sender.send(());
    });
    let _ = receiver.recv_timeout(PRINT_TIME_MAX);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::failure::ExitStatus;
    use super::*;

    #[test]
    fn a_command_ends_although_one_of_its_threads_still_waits() {
        let (input, read) = mpsc::sync_channel::<()>(1);
        let command = async move {
            let (started, start) = oneshot::channel();
            // as a thread that reads standard input
            tokio::task::spawn_blocking(move || {
                started.send(()).unwrap();
                read.recv()
            });
            start.await?;
            Ok(ExitStatus::Success)
        };
        let (end, ended) = mpsc::sync_channel(1);
        std::thread::spawn(move || end.send(block_on(command).is_ok()));
        assert_eq!(ended.recv_timeout(Duration::from_secs(30)), Ok(true));
        drop(input);
    }
}
