//! Completion of the command line: the scripts of `meshkeep completion`, and the answers to them.
//!
//! A script calls this program for each completion, with the words of the line. That lets the
//! program offer the names of the clusters that the sidecar knows.

use std::env;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args as _, Command, FromArgMatches as _};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use serde_json::Value;

use crate::cli::failure::{CommandResult, ExitStatus, Failure, ResultExt as _};
use crate::cli::queries::api_client::connection_words::split_option;
use crate::cli::queries::api_client::{ApiClient, ServerOptions, items};
use crate::cli::queries::kinds::KINDS;
use crate::cli::terminal::output::{OUTPUT_FORMATS, print, print_document};
use crate::dto::values::closed::{FindingKind, Phase, Severity, StreamedKind};
use crate::model::ApiEnum;

/// Environment variable with which a script asks for candidates. Its value is the shell.
const SHELL_VARIABLE: &str = "MESHKEEP_COMPLETE";

/// Maximum time to ask the sidecar for names: a person waits for the answer, and the sidecar is
/// usually on this machine.
const NAMES_TIME_MAX: Duration = Duration::from_secs(1);

/// Id of an option, or name of a command, with the source of values.
type ValueSource = (&'static str, fn() -> Vec<CompletionCandidate>);

/// Options of every command that queries a sidecar, by their ids.
const VALUES: [ValueSource; 5] = [
    ("cluster", cluster_names),
    ("from", cluster_names),
    ("output", || candidates(OUTPUT_FORMATS)),
    ("phase", names_of::<Phase>),
    ("severity", names_of::<Severity>),
];

/// Sources of the kinds of each command.
const KINDS_OF_COMMANDS: [ValueSource; 3] = [
    ("get", || candidates(KINDS.iter().map(|kind| kind.names[0]))),
    ("problems", names_of::<FindingKind>),
    ("watch", names_of::<StreamedKind>),
];

/// Returns the names of the shells.
pub(in crate::cli) fn shell_names() -> Vec<&'static str> {
    let shells = Shells::builtins();
    shells.names().collect()
}

/// Prints the script for a shell.
pub(in crate::cli) fn print_script(shell: &str) -> CommandResult {
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or_else(|| Failure::usage(format!("{shell:?} is not a supported shell")))?;
    let mut script = Vec::new();
    completer.write_registration(SHELL_VARIABLE, "meshkeep", "meshkeep", "meshkeep", &mut script).or_fail("cannot write the script")?;
    print(&String::from_utf8_lossy(&script)).map(|()| ExitStatus::Success)
}

/// Answers a completion script. Returns `None` if the process was not started by one.
pub(in crate::cli) fn answer_script(arguments: &[OsString], command: impl FnOnce() -> Command) -> Option<CommandResult> {
    let shell = env::var(SHELL_VARIABLE).ok()?;
    let shells = Shells::builtins();
    let completer = shells.completer(&shell)?;
    let words = words_of_line(arguments)?.to_vec();
    let mut answer = Vec::new();
    let written = completer.write_complete(&mut with_candidates(command()), words, env::current_dir().ok().as_deref(), &mut answer);
    let printed = written.or_fail("cannot complete").and_then(|()| print_document(|out| io::Write::write_all(out, &answer)));
    Some(printed.map(|()| ExitStatus::Success))
}

/// Returns the words that a script passes after `--`.
fn words_of_line(arguments: &[OsString]) -> Option<&[OsString]> {
    let separator = arguments.iter().position(|argument| argument == "--")?;
    arguments.get(separator + 1..)
}

/// Adds the sources of values to the options of the commands that query a sidecar.
fn with_candidates(command: Command) -> Command {
    let is_query = |command: &&Command| command.get_arguments().any(|option| option.get_id() == "server");
    let names: Vec<String> = command.get_subcommands().filter(is_query).map(|command| command.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        let kinds = KINDS_OF_COMMANDS.iter().find(|(command, _)| *command == name).map(|(_, source)| *source);
        command.mut_subcommand(&name, |command| {
            command.mut_args(|option| {
                // `bundle --output` names a file, not a format
                let is_source = |id: &str| option.get_id() == id && (id, name.as_str()) != ("output", "bundle");
                let by_id = VALUES.iter().find(|(id, _)| is_source(id)).map(|(_, source)| *source);
                let source = if option.get_id() == "kind" { kinds } else { by_id };
                add_source(option, source)
            })
        })
    })
}

fn add_source(option: Arg, source: Option<fn() -> Vec<CompletionCandidate>>) -> Arg {
    match source {
        Some(source) => option.add(ArgValueCandidates::new(source)),
        None => option,
    }
}

fn candidates(names: impl IntoIterator<Item = impl Into<OsString>>) -> Vec<CompletionCandidate> {
    names.into_iter().map(CompletionCandidate::new).collect()
}

fn names_of<T: ApiEnum>() -> Vec<CompletionCandidate> {
    candidates(T::values().map(ApiEnum::api_name))
}

/// Returns the names of the clusters; none if the sidecar does not answer in time.
fn cluster_names() -> Vec<CompletionCandidate> {
    candidates(fetch_cluster_names().unwrap_or_default())
}

fn fetch_cluster_names() -> Option<Vec<String>> {
    let arguments: Vec<OsString> = env::args_os().collect();
    let client = ApiClient::new(&server_of_line(words_of_line(&arguments)?)?).ok()?.silent();
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let query = [("fields", "name"), ("meta", "none"), ("limit", "10000")];
    let answer = executor.block_on(async { tokio::time::timeout(NAMES_TIME_MAX, client.get::<Value>("/v1/clusters", &query)).await });
    // dropping the runtime would wait for a name server that does not answer
    executor.shutdown_background();
    let names = items(answer.ok()?.ok()?).into_iter().filter_map(|cluster| cluster["name"].as_str().map(str::to_owned));
    // names come from the config directory of the sidecar, which may be another machine
    Some(names.filter(|name| crate::model::check_exact_name(name).is_ok() && !name.contains(char::is_control)).collect())
}

/// Returns the connection options in the words of a line. Options that the line lacks come from the
/// environment.
fn server_of_line(words: &[OsString]) -> Option<ServerOptions> {
    let (words, mut arguments) = (join_split_words(words), Vec::new());
    let mut rest = words.as_slice();
    while let Some((_, after)) = rest.split_first() {
        let (option, others) = split_option(rest);
        arguments.extend_from_slice(option);
        rest = if option.is_empty() { after } else { others };
    }
    let command = ServerOptions::augment_args(Command::new("meshkeep").no_binary_name(true));
    let matches: ArgMatches = command.try_get_matches_from(arguments).ok()?;
    ServerOptions::from_arg_matches(&matches).ok()
}

/// Joins the parts of words that bash splits at `:` and `=` (its variable `COMP_WORDBREAKS`), such
/// as those of a URL.
fn join_split_words(words: &[OsString]) -> Vec<OsString> {
    let is_separator = |word: &OsString| !word.is_empty() && word.as_encoded_bytes().iter().all(|byte| b":=".contains(byte));
    let mut joined: Vec<OsString> = Vec::new();
    let mut is_open = false;
    for word in words {
        match joined.last_mut().filter(|_| is_open || is_separator(word)) {
            Some(last) => last.push(word),
            None => joined.push(word.clone()),
        }
        is_open = is_separator(word);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn words_that_bash_splits_are_joined() {
        for (line, expected) in [
            ("meshkeep --server http : //h : 9870 get nodes", "meshkeep --server http://h:9870 get nodes"),
            ("meshkeep get --server = http : //h : 9870 nodes", "meshkeep get --server=http://h:9870 nodes"),
            ("meshkeep get --server http://h:9870 nodes", "meshkeep get --server http://h:9870 nodes"),
        ] {
            assert_eq!(join_split_words(&words(line)), words(expected), "{line}");
        }
    }

    #[test]
    fn the_words_of_the_line_follow_the_separator() {
        let arguments = words("/usr/bin/meshkeep -- meshkeep get nodes");
        assert_eq!(words_of_line(&arguments), Some(&words("meshkeep get nodes")[..]));
        assert_eq!(words_of_line(&words("meshkeep get nodes")), None);
    }
}
