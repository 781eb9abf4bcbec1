//! Connection options among the words of a command line, such as `--server URL`, before they are
//! parsed.

use std::ffi::OsString;

use clap::{Args as _, Command};

use super::ServerOptions;

/// Splits the connection option at the beginning from the other words. The first part is empty if
/// the words begin with something else.
pub(in crate::cli) fn split_option(words: &[OsString]) -> (&[OsString], &[OsString]) {
    let first = words.first().and_then(|word| word.to_str()).and_then(|word| word.strip_prefix("--")).unwrap_or_default();
    let (name, value) = first.split_once('=').map_or((first, None), |(name, value)| (name, Some(value)));
    let command = ServerOptions::augment_args(Command::new(""));
    let is_option = command.get_arguments().any(|option| option.get_long() == Some(name));
    let count = if !is_option {
        0
    } else if value.is_some() {
        1
    } else {
        2
    };
    words.split_at(count.min(words.len()))
}

/// Splits all connection options at the beginning from the other words.
pub(in crate::cli) fn split_options(words: &[OsString]) -> (&[OsString], &[OsString]) {
    let mut rest = words;
    while let (option, others) = split_option(rest)
        && !option.is_empty()
    {
        rest = others;
    }
    words.split_at(words.len() - rest.len())
}

/// Moves connection options before the command behind it, because each command parses its own.
pub(in crate::cli) fn move_behind_command(arguments: Vec<OsString>) -> Vec<OsString> {
    let Some((program, words)) = arguments.split_first() else { return arguments };
    let (options, rest) = split_options(words);
    match rest.split_first() {
        // without a command that has these options, the parser reports the mistake
        Some((command, others)) if !options.is_empty() && command != "help" && !command.to_string_lossy().starts_with('-') => {
            let parts = [std::slice::from_ref(program), std::slice::from_ref(command), options, others];
            parts.concat()
        }
        _ => arguments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_options_may_precede_the_command() {
        let words = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        for (line, expected) in [
            ("meshkeep --server http://a get nodes -o wide", "meshkeep get --server http://a nodes -o wide"),
            ("meshkeep --server=http://a --token-file t get nodes", "meshkeep get --server=http://a --token-file t nodes"),
            ("meshkeep --server unix:///s status --server http://b", "meshkeep status --server unix:///s --server http://b"),
            ("meshkeep get --server http://a nodes", "meshkeep get --server http://a nodes"),
            ("meshkeep --server http://a help get", "meshkeep --server http://a help get"),
            ("meshkeep --server http://a --help", "meshkeep --server http://a --help"),
            ("meshkeep --server", "meshkeep --server"),
            ("meshkeep --version", "meshkeep --version"),
            ("meshkeep --serve x get", "meshkeep --serve x get"),
            ("meshkeep", "meshkeep"),
            ("", ""),
        ] {
            assert_eq!(move_behind_command(words(line)), words(expected), "{line}");
        }
    }
}
