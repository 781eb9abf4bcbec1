//! `kubectl meshkeep`: the binary under the name `kubectl-meshkeep`, with a kubectl that records
//! its arguments.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use super::command_line::exit_code_and_error;

/// A kubectl that prints pods, and the arguments of `exec` instead of the output of a command.
const KUBECTL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kubectl/kubectl");

/// Runs the plugin with the fake kubectl in a directory.
fn run(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(directory.join("kubectl-meshkeep")).args(arguments).env("PATH", directory).output().unwrap()
}

#[test]
fn the_plugin_runs_a_command_in_the_pod_that_has_meshkeep() {
    let directory = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_meshkeep"), directory.path().join("kubectl-meshkeep")).unwrap();
    let (code, text) = exit_code_and_error(&run(directory.path(), &["status"]));
    assert!(code == Some(1) && text.contains("cannot run kubectl, which must be in PATH"), "{text}");
    symlink(KUBECTL, directory.path().join("kubectl")).unwrap();

    let output = run(directory.path(), &["--context", "paris", "get", "svc", "-n", "shop"]);
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()),
        (Some(7), "--namespace|kube-system|--context|paris|exec|apiserver-2|-c|meshkeep|--|/meshkeep|get|svc|-n|shop|")
    );
    let output = run(directory.path(), &["-n", "mesh", "--pod", "meshkeep-1", "lookup", "-"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "--namespace|mesh|exec|-i|meshkeep-1|-c|meshkeep|--|/meshkeep|lookup|-|",
        "{output:?}"
    );
    let (code, text) = exit_code_and_error(&run(directory.path(), &["-n", "mesh", "-l", "app=other", "status"]));
    assert!(code == Some(3) && text.contains("no running pod in the namespace mesh has the label app=other"), "{text}");
    let (code, text) = exit_code_and_error(&run(directory.path(), &["--context", "fail", "status"]));
    assert!(code == Some(3) && text.starts_with("the server has asked for credentials"), "{text}");
    let help = String::from_utf8(run(directory.path(), &["--help"]).stdout).unwrap();
    assert!(help.contains("Usage: kubectl meshkeep [OPTIONS] <COMMAND>..."), "{help}");
}
