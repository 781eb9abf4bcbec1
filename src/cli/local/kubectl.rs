//! `kubectl meshkeep COMMAND`: runs a command of meshkeep in a pod of meshkeep.
//!
//! kubectl starts a plugin by its name, `kubectl-meshkeep`. The binary behaves as the plugin when
//! it is called by that name, for instance through a symbolic link. It finds the pod and is then
//! replaced by `kubectl exec`, so kubectl connects and authenticates, and the exit code is that of
//! the command in the pod.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Parser;

use crate::cli::failure::{CommandResult, Failure};
use crate::cli::queries::api_client::connection_words::split_options;

/// Name of the plugin's program (kubectl's convention for `kubectl meshkeep`).
const PROGRAM: &str = "kubectl-meshkeep";

/// Name of the container in each pod that the chart deploys, and in the sidecar's patch.
const CONTAINER: &str = "meshkeep";

/// Path of the binary in the image.
const BINARY: &str = "/meshkeep";

/// Labels of pods to search, in this order: those of the chart, then those of a
/// clustermesh-apiserver, which may have meshkeep as a sidecar.
const SELECTORS: [&str; 2] = ["app.kubernetes.io/name=meshkeep", "k8s-app=clustermesh-apiserver"];

/// Columns of a pod: its name, its condition `Ready`, and the names and the first arguments of its
/// container for meshkeep.
const COLUMNS: &str = concat!(
    r#"jsonpath={range .items[*]}{.metadata.name}{"\t"}{.status.conditions[?(@.type=="Ready")].status}{"\t"}"#,
    r#"{.spec.containers[?(@.name=="meshkeep")].name}{"\t"}{.spec.containers[?(@.name=="meshkeep")].args[0]}{"\n"}{end}"#
);

/// Run a command of meshkeep in a pod of meshkeep, for instance `kubectl meshkeep status`
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM, bin_name = "kubectl meshkeep", version = env!("MESHKEEP_VERSION"), arg_required_else_help = true,
    after_help = "Options of the command follow it: kubectl meshkeep -n mesh get services -n shop. `kubectl meshkeep help` lists the commands."
)]
pub(in crate::cli) struct PluginOptions {
    /// The namespace of meshkeep
    #[arg(short, long, default_value = "kube-system")]
    namespace: OsString,
    /// The context of the kubeconfig file
    #[arg(long)]
    context: Option<OsString>,
    /// The kubeconfig file
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Labels of the pods of meshkeep [default: those of the chart, then those of
    /// clustermesh-apiserver]
    #[arg(short = 'l', long, conflicts_with = "pod")]
    selector: Option<OsString>,
    /// The pod, instead of the first one that is ready
    #[arg(long)]
    pod: Option<OsString>,
    /// The command with its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Parses the arguments of the plugin. Returns `None` if the program was not called by its name.
pub(in crate::cli) fn parse_plugin(arguments: &[OsString]) -> Option<Result<PluginOptions, clap::Error>> {
    let program = Path::new(arguments.first()?);
    (program.file_name()? == PROGRAM).then(|| PluginOptions::try_parse_from(arguments))
}

/// Replaces this process with `kubectl exec`. Returns only if that failed.
pub(in crate::cli) fn run(options: &PluginOptions) -> CommandResult {
    let pod = options.pod.clone().map_or_else(|| find_pod(options), Ok)?;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut command = kubectl(options);
    command.args(exec_arguments(&pod, &options.command, is_terminal));
    Err(cannot_run(&command.exec()))
}

/// Returns the arguments that run a command of meshkeep in a pod. Standard input is connected only
/// if the command may read it: otherwise kubectl would consume the input of a loop in a script.
fn exec_arguments(pod: &OsStr, command: &[OsString], is_terminal: bool) -> Vec<OsString> {
    let mut arguments = vec![OsString::from("exec")];
    let is_dash = |argument: &OsString| argument == "-" || argument.as_encoded_bytes().ends_with(b"=-");
    let (_, words) = split_options(command);
    let reads_input = words.first().is_some_and(|name| match name.as_encoded_bytes() {
        b"mcp" => true,
        // `-` is standard output
        b"bundle" => false,
        _ => words.iter().any(is_dash),
    });
    if is_terminal {
        arguments.push("-it".into());
    } else if reads_input {
        arguments.push("-i".into());
    }
    arguments.extend([pod, OsStr::new("-c"), OsStr::new(CONTAINER), OsStr::new("--"), OsStr::new(BINARY)].map(OsStr::to_owned));
    arguments.extend_from_slice(command);
    arguments
}

/// Returns the name of the first pod that is ready, or of the first pod if none is.
fn find_pod(options: &PluginOptions) -> Result<OsString, Failure> {
    let selectors = match &options.selector {
        Some(selector) => vec![selector.as_os_str()],
        None => SELECTORS.map(OsStr::new).to_vec(),
    };
    for selector in &selectors {
        let mut command = kubectl(options);
        command.args(["get", "pods", "--field-selector=status.phase=Running", "-o", COLUMNS, "-l"]).arg(selector);
        // kubectl's own message explains why it failed
        command.stderr(Stdio::inherit());
        let output = command.output().map_err(|error| cannot_run(&error))?;
        if !output.status.success() {
            return Err(Failure::unavailable("kubectl cannot list the pods of meshkeep: see its message above"));
        }
        if let Some(pod) = select_pod(&String::from_utf8_lossy(&output.stdout)) {
            return Ok(pod.into());
        }
    }
    let labels: Vec<_> = selectors.iter().map(|selector| selector.to_string_lossy()).collect();
    Err(Failure::unavailable(format!(
        "no running pod in the namespace {} has the label {} and a container {CONTAINER}: \
         name the namespace with --namespace, the labels with --selector, or the pod with --pod",
        options.namespace.display(),
        labels.join(" or ")
    )))
}

/// Selects a pod from lines of [`COLUMNS`]. A pod of `meshkeep announce` has no API to ask.
fn select_pod(lines: &str) -> Option<&str> {
    let pods = lines.lines().filter_map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
        [name, is_ready, CONTAINER, argument] if argument != "announce" => Some((name, is_ready == "True")),
        _ => None,
    });
    // of equal pods, `min_by_key` returns the first
    pods.min_by_key(|(_, is_ready)| !is_ready).map(|(name, _)| name)
}

/// Returns a command of kubectl with the options that select the cluster and the namespace.
fn kubectl(options: &PluginOptions) -> Command {
    let mut command = Command::new("kubectl");
    command.arg("--namespace").arg(&options.namespace);
    if let Some(context) = &options.context {
        command.arg("--context").arg(context);
    }
    if let Some(kubeconfig) = &options.kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    command
}

fn cannot_run(error: &io::Error) -> Failure {
    Failure::new(format!("cannot run kubectl, which must be in PATH: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_first_ready_pod_with_an_api_is_selected() {
        for (lines, expected) in [
            (
                "meshkeep-0\tFalse\tmeshkeep\tserve\nmeshkeep-1\tTrue\tmeshkeep\tserve\nmeshkeep-2\tTrue\tmeshkeep\tserve\n",
                Some("meshkeep-1"),
            ),
            ("announce-0\tTrue\tmeshkeep\tannounce\nmeshkeep-0\tTrue\tmeshkeep\treflect\n", Some("meshkeep-0")),
            ("meshkeep-0\tFalse\tmeshkeep\t\n", Some("meshkeep-0")),
            // a clustermesh-apiserver without the sidecar
            ("clustermesh-apiserver-7d\tTrue\t\t\n", None),
            ("", None),
        ] {
            assert_eq!(select_pod(lines), expected, "{lines}");
        }
    }

    #[test]
    fn standard_input_is_connected_only_if_it_is_read() {
        let exec = |line, is_terminal| exec_arguments(OsStr::new("meshkeep-0"), &words(line), is_terminal);
        assert_eq!(exec("status", false), words("exec meshkeep-0 -c meshkeep -- /meshkeep status"));
        assert_eq!(exec("lookup -", false), words("exec -i meshkeep-0 -c meshkeep -- /meshkeep lookup -"));
        let diff = "exec -i meshkeep-0 -c meshkeep -- /meshkeep diff --agent=-";
        assert_eq!(exec("diff --agent=-", false), words(diff));
        assert_eq!(exec("bundle --output -", false), words("exec meshkeep-0 -c meshkeep -- /meshkeep bundle --output -"));
        assert_eq!(exec("mcp", false), words("exec -i meshkeep-0 -c meshkeep -- /meshkeep mcp"));
        let mcp = "exec -i meshkeep-0 -c meshkeep -- /meshkeep --server unix:///s --token-file=t mcp";
        assert_eq!(exec("--server unix:///s --token-file=t mcp", false), words(mcp));
        let bundle = "exec meshkeep-0 -c meshkeep -- /meshkeep --server unix:///s bundle --output -";
        assert_eq!(exec("--server unix:///s bundle --output -", false), words(bundle));
        assert_eq!(exec("watch", true), words("exec -it meshkeep-0 -c meshkeep -- /meshkeep watch"));
    }

    #[test]
    fn options_before_the_command_belong_to_the_plugin() {
        let options =
            PluginOptions::try_parse_from(words("kubectl-meshkeep -n mesh --context paris get svc -n shop --cluster tokyo")).unwrap();
        assert_eq!((options.namespace.to_str(), options.context), (Some("mesh"), Some("paris".into())));
        assert_eq!(options.command, words("get svc -n shop --cluster tokyo"));
        assert!(PluginOptions::try_parse_from(words("kubectl-meshkeep")).is_err());
        assert!(parse_plugin(&words("/usr/bin/meshkeep status")).is_none());
    }
}
