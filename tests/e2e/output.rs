//! Output that cannot be written: a full disk, a closed pipe or a stopped reader of standard output
//! or error blocks nothing.

use std::fs::{self, File};
use std::io::PipeReader;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::harness::eventually;
use crate::harness::meshkeep::http;

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// Returns a pipe whose read end is closed.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Returns a pipe that is never read.
fn unread() -> (PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader, writer.into())
}

fn meshkeep() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// Starts a sidecar with these outputs. Returns it and its URL.
fn serve(directory: &std::path::Path, output: Stdio, error: Stdio) -> (Child, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = directory.join("clustermesh");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("refused"), "endpoints:\n- http://127.0.0.1:1\n").unwrap();
    let mut command = meshkeep();
    command.args(["serve", "--log-level=trace"]).env("RUST_LOG", "trace");
    command.arg(format!("--listen=127.0.0.1:{port}")).arg(format!("--clustermesh-config={}", config.display()));
    command.arg(format!("--data-dir={}", directory.join("data").display()));
    (command.stdout(output).stderr(error).spawn().unwrap(), format!("http://127.0.0.1:{port}"))
}

/// Repeats a request until it is answered. The process must not end meanwhile.
async fn wait_for_answer(child: &mut Child, url: &str) -> String {
    let what = format!("an answer of {url}");
    let child = std::cell::RefCell::new(child);
    eventually(&what, || async {
        let ended = child.borrow_mut().try_wait().unwrap();
        assert!(ended.is_none(), "it ended with {ended:?}");
        http().get(url).send().await.ok()?.text().await.ok()
    })
    .await
}

async fn terminate(child: &mut Child) -> ExitStatus {
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let child = std::cell::RefCell::new(child);
    eventually("the end", || async { child.borrow_mut().try_wait().unwrap() }).await
}

fn lost_lines(metrics: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix("meshkeep_log_lines_lost_total "));
    line.expect("the metric must be there").parse().unwrap()
}

#[tokio::test]
async fn unwritable_output_blocks_nothing_and_lost_lines_are_counted() {
    for sink in [full, closed] {
        let directory = tempfile::tempdir().unwrap();
        let (mut child, url) = serve(directory.path(), sink(), sink());
        wait_for_answer(&mut child, &format!("{url}/readyz")).await;
        assert!(lost_lines(&wait_for_answer(&mut child, &format!("{url}/metrics")).await) > 0);
        assert_eq!(terminate(&mut child).await.code(), Some(0));
    }
}

/// A reader of the log stops reading. Its pipe has a capacity of 64 KiB, and the requests write
/// several times as much to the log.
#[tokio::test]
async fn a_log_reader_that_stops_reading_blocks_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (_reader, error) = unread();
    let (mut child, url) = serve(directory.path(), Stdio::null(), error);
    for _ in 0..400 {
        wait_for_answer(&mut child, &format!("{url}/v1/status")).await;
    }
    assert_eq!(terminate(&mut child).await.code(), Some(0));
}

#[test]
fn commands_end_properly_when_output_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().display().to_string();
    for part in ["store", "log"] {
        let (from, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/0003-one-log").join(part), directory.path().join(part));
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(from).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() {
                fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
            }
        }
    }
    let cases: [(&[&str], i32); 5] = [
        (&["openapi"], 1),
        (&["store", "export", "--data-dir", &data], 1),
        (&["store", "inspect", "--data-dir", &data], 1),
        (&["store", "verify", "--data-dir", &data], 1),
        (&["--help"], 0),
    ];
    for (arguments, when_full) in cases {
        for (output, code) in [(closed(), 0), (full(), when_full)] {
            let ended = meshkeep().args(arguments).stdout(output).stderr(Stdio::piped()).output().unwrap();
            let errors = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {errors}");
            assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
            assert_eq!(errors.contains("cannot write to standard output"), code == 1, "{arguments:?}: {errors}");
        }
    }
    // the same for error output
    for (arguments, code) in [(&["serve", "--listen=nonsense"][..], 2), (&["store", "verify", "--data-dir=/nowhere"], 1)] {
        for error in [closed(), full()] {
            assert_eq!(meshkeep().args(arguments).stderr(error).status().unwrap().code(), Some(code), "{arguments:?}");
        }
    }
}
