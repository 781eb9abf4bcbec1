//! The pages for users: each command in a ```` ```console ```` block is run with the sample mesh,
//! and must print what the page shows.
//!
//! Blocks contain lines that start with `$ ` (commands for `bash`; a backslash at the end continues
//! the line) and the output. A line of output that is `…` matches any number of lines. Values that
//! differ between runs (ages, times, ports, positions) are compared by their form only. Runs of
//! blanks and column widths are ignored. Commands run in one directory, which has the client files
//! in `clustermesh/` and a table of an agent in `ipcache.json`; the binary is in `PATH`, and
//! 127.0.0.1:9870 leads to the sidecar. With `DOCUMENTS_WRITE=1` the commands' output is written
//! into the pages instead. Commands that no test can run are in blocks of another type, which may
//! only use the programs of [`PROGRAMS_NOT_RUN`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::samples::in_state_form;
use crate::harness::etcd::etcd_binaries;

/// Address of the sidecar on the pages.
const PAGE_ADDRESS: &str = "127.0.0.1:9870";

/// Line of output that matches any number of lines.
const ANYTHING: &str = "…";

/// Allowed first words of commands in `sh` blocks: programs that need a cluster, a registry, a
/// host's services, files of a release or minutes to build, or that never end.
const PROGRAMS_NOT_RUN: [&str; 21] = [
    "cargo ",
    "etcdctl ",
    "gh ",
    "git ",
    "helm ",
    "just ",
    "kubectl ",
    "meshkeep load",
    "meshkeep serve",
    "meshkeep verify",
    "minisign ",
    "npm ",
    "pip ",
    "podman ",
    "promtool ",
    "scripts/",
    "skopeo ",
    "sudo ",
    "systemd-analyze ",
    "tar ",
    "twine ",
];

/// The only page whose commands change the mesh. It is tested last.
const CHANGING_PAGE: &str = "docs/use/tour.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns README.md and the pages of docs/ and its folders. The page that changes the mesh is the
/// last one.
fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "docs/use", "docs/use/api", "docs/operate", "docs/develop"].map(|folder| root().join(folder));
    let all = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root().join("README.md"));
    pages.sort_by_key(|path| (path.ends_with(CHANGING_PAGE), path.clone()));
    pages
}

/// A command and the output that the page shows.
#[derive(Debug, PartialEq, Eq)]
struct Example {
    command: String,
    output: Vec<String>,
}

/// Part of a page: text that stays, or commands with their output.
#[derive(Debug, PartialEq, Eq)]
enum PagePart {
    Text(String),
    Example(Example),
}

fn parts(page: &str) -> Vec<PagePart> {
    let (mut parts, mut is_console) = (Vec::new(), false);
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            is_console = language == "console";
            parts.push(PagePart::Text(line.to_owned()));
        } else if !is_console {
            parts.push(PagePart::Text(line.to_owned()));
        } else if let Some(command) = line.strip_prefix("$ ") {
            parts.push(PagePart::Example(Example { command: command.to_owned(), output: Vec::new() }));
        } else if let Some(PagePart::Example(example)) = parts.last_mut() {
            if example.command.ends_with('\\') {
                example.command += &format!("\n{line}");
            } else {
                example.output.push(line.to_owned());
            }
        } else {
            panic!("a console block begins without a command: {line}");
        }
    }
    parts
}

fn text(parts: &[PagePart]) -> String {
    let lines = parts.iter().flat_map(|part| match part {
        PagePart::Text(line) => vec![line.clone()],
        PagePart::Example(Example { command, output }) => [vec![format!("$ {command}")], output.clone()].concat(),
    });
    lines.fold(String::new(), |text, line| text + &line + "\n")
}

/// Reduces a line to its form: values that differ between runs are replaced, and runs of blanks
/// become one.
fn form(line: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-:+".contains(c);
    let (mut formed, mut word) = (String::new(), String::new());
    for c in line.chars().chain(['\n']) {
        if is_part(c) {
            word.push(c);
            continue;
        }
        // in JSON a colon before a number is not part of the number
        let bare = word.trim_start_matches(':');
        formed += &":".repeat(word.len() - bare.len());
        formed += &form_of_word(bare);
        word.clear();
        if !(c.is_whitespace() && formed.ends_with([' ', '\n'])) {
            formed.push(if c.is_whitespace() { ' ' } else { c });
        }
    }
    formed.trim_end().to_owned()
}

fn form_of_word(word: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let hex = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_decimal = word.split_once('.').is_some_and(|(whole, rest)| digits(whole) && digits(rest));
    let is_duration = word.ends_with(['s', 'm', 'h', 'd']) && word.starts_with(|c: char| c.is_ascii_digit()) && {
        word.bytes().all(|byte| byte.is_ascii_digit() || b".smhd".contains(&byte))
    };
    let bytes = word.as_bytes();
    let is_time = bytes.len() >= 19 && bytes[10] == b'T' && bytes[4] == b'-' && word.ends_with('Z');
    if is_time || word.len() >= 14 && word.starts_with("20") && word.contains('T') {
        return "TIME".to_owned();
    }
    if is_duration || is_decimal {
        return "AGE".to_owned();
    }
    let parts: Vec<&str> = word.split(['.', ':']).collect();
    match parts.as_slice() {
        ["v1", epoch, sequence] if hex(epoch) && digits(sequence) => "POSITION".to_owned(),
        [one] if hex(one) => "HEX".to_owned(),
        // a time of day, as in `watch` and in logs
        [hours, minutes, seconds] if word.contains(':') && [hours, minutes, seconds].iter().all(|part| part.len() == 2 && digits(part)) => {
            "TIME".to_owned()
        }
        _ => match word.rsplit_once(':') {
            Some(("127.0.0.1", port)) if digits(port) => "127.0.0.1:PORT".to_owned(),
            _ => word.to_owned(),
        },
    }
}

/// Returns whether the lines match those that a page shows.
fn fits(expected: &[String], actual: &[String]) -> bool {
    match expected {
        [] => actual.is_empty(),
        [any, rest @ ..] if any == ANYTHING => (0..=actual.len()).any(|from| fits(rest, &actual[from..])),
        [line, rest @ ..] => actual.first().is_some_and(|first| form(first) == form(line)) && fits(rest, &actual[1..]),
    }
}

#[test]
fn values_that_differ_between_runs_are_compared_by_form() {
    for (line, formed) in [
        ("paris  1   live   16s  6.4s  2      2", "paris 1 live AGE AGE 2 2"),
        (r#"{"ageSeconds":1.872,"lastContact":"2026-11-25T12:54:48.265Z","id":7}"#, r#"{"ageSeconds":AGE,"lastContact":"TIME","id":7}"#),
        ("at v1.e8c13768b68d8dc4.71, http://127.0.0.1:22106/x of 10.1.2.40", "at POSITION, http://127.0.0.1:PORT/x of 10.1.2.40"),
        ("up 2m10s", "up AGE"),
    ] {
        assert_eq!(form(line), formed);
    }
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let actual = lines(&["a 1s", "b", "c"]);
    assert!(fits(&lines(&["a   2s", "…", "c"]), &actual) && fits(&lines(&["…"]), &actual));
    assert!(!fits(&lines(&["a 2s", "c"]), &actual) && !fits(&lines(&["…", "b"]), &actual));
    let page = "x\n```console\n$ a \\\n  b\nout\n$ c\n```\n";
    assert_eq!((parts(page).len(), text(&parts(page))), (5, page.to_owned()));
}

/// A shell in its own directory.
struct Shell {
    directory: PathBuf,
    path: String,
    server: String,
}

impl Shell {
    fn run(&self, command: &str) -> Vec<String> {
        let address = self.server.trim_start_matches("http://");
        let output = Command::new("bash")
            .args(["-c", &format!("exec 2>&1; {}", command.replace(PAGE_ADDRESS, address))])
            .current_dir(&self.directory)
            .env_clear()
            .env("PATH", &self.path)
            .env("MESHKEEP_SERVER", &self.server)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).replace(address, PAGE_ADDRESS);
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_prints_the_output_that_the_page_shows() {
    let (_etcds, home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let directory = home.config_directory().parent().unwrap().to_owned();
    let programs = directory.join("programs");
    fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_meshkeep"), programs.join("meshkeep")).unwrap();
    fs::copy(root().join("tests/data/agent/1.20-bpf-ipcache.json"), directory.join("ipcache.json")).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let shell = Shell { directory, path, server: running.url().to_owned() };
    let is_writing = std::env::var_os("DOCUMENTS_WRITE").is_some();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages() {
        let before = fs::read_to_string(&page).unwrap();
        let mut parts = parts(&before);
        for part in &mut parts {
            let PagePart::Example(example) = part else { continue };
            count += 1;
            let actual = shell.run(&example.command);
            if fits(&example.output, &actual) {
                continue;
            }
            wrong.push(format!(
                "{}: $ {}\nshown:\n{}\nfound:\n{}\n",
                page.display(),
                example.command,
                example.output.join("\n"),
                actual.join("\n")
            ));
            example.output = actual;
        }
        let after = text(&parts);
        if is_writing && after != before {
            fs::write(&page, after).unwrap();
        }
    }
    assert!(count > 20, "only {count} commands were found");
    assert!(wrong.is_empty() || is_writing, "{}DOCUMENTS_WRITE=1 writes the actual output", wrong.join("\n"));
}

#[test]
fn only_commands_that_cannot_be_run_are_not_run() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let (mut language, mut continues) = (None, false);
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("```") {
                language = language.is_none().then_some(name);
                continue;
            }
            let is_command = matches!(language, Some("sh" | "bash")) && !continues && !line.starts_with('#') && !line.trim().is_empty();
            if is_command && !PROGRAMS_NOT_RUN.iter().any(|program| line.starts_with(program)) {
                wrong.push(format!("{}: {line}", page.display()));
            }
            continues = line.ends_with('\\');
        }
    }
    assert!(wrong.is_empty(), "write them as console, so that they are run:\n{}", wrong.join("\n"));
}
