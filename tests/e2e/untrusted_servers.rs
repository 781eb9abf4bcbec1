//! Commands with a server that requires a client certificate, and with a malicious server that is
//! not a meshkeep.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::command_line::{exit_code_and_error, meshkeep, run};
use crate::harness::certificates::Authority;
use crate::harness::meshkeep::Home;

/// Maximum time until a command gives up. An endless answer arrives at the speed of loopback.
const GIVE_UP_MAX: Duration = Duration::from_secs(20);

#[tokio::test]
async fn commands_send_a_client_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (authority, other) = (Authority::new(directory.path(), "ca"), Authority::new(&directory.path().join("other"), "other"));
    let server = authority.server("server", &["127.0.0.1"]);
    let (trusted, untrusted) = (authority.client("reader"), other.client("reader"));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let ca = text(authority.certificate());
    let tls = ["--tls-cert", &text(&server.certificate), "--tls-key", &text(&server.key), "--client-ca", &ca];
    let mut home = Home::new().with_only_flags(&[&tls[..], &["--allow-no-clusters", "--listen", "127.0.0.1:0"]].concat());
    let running = home.start().await;
    let (certificate, key) = (text(&trusted.certificate), text(&trusted.key));
    let pair = ["--ca-file", &ca, "--client-cert", &certificate, "--client-key", &key];

    for command in [&["status", "--wait", "--timeout", "20s"][..], &["get", "nodes"], &["problems"], &["healthcheck"], &["config"]] {
        let output = run(running.url(), &[command, &pair].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
    }
    let mut by_environment = meshkeep(&["status", "--server", running.url()]);
    let variables = [("MESHKEEP_CA_FILE", &ca), ("MESHKEEP_CLIENT_CERT", &certificate), ("MESHKEEP_CLIENT_KEY", &key)];
    assert_eq!(by_environment.envs(variables).output().unwrap().status.code(), Some(0));

    let status_complaint = |flags: &[&str]| exit_code_and_error(&run(running.url(), &[&["status", "--ca-file", &ca], flags].concat()));
    let (code, complaint) = status_complaint(&[]);
    assert!(code == Some(3) && complaint.contains("--client-cert"), "{complaint}");
    let (code, complaint) = status_complaint(&["--client-cert", &text(&untrusted.certificate), "--client-key", &text(&untrusted.key)]);
    assert!(code == Some(3) && complaint.contains("--client-cert"), "{complaint}");
    fs::write(path("nothing"), "nothing\n").unwrap();
    fs::write(path("no-certificate"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    fs::write(path("secret"), "-----BEGIN PRIVATE KEY-----hunter2-----END PRIVATE KEY-----\n").unwrap();
    for (flags, expected) in [
        (["--client-cert", &certificate, "", ""], "--client-cert needs --client-key, the file with the private key"),
        (["--client-key", &key, "", ""], "--client-key needs --client-cert, the file with the certificate"),
        (["--client-cert", &path("nowhere"), "--client-key", &key], "nowhere: No such file or directory"),
        (["--client-cert", &certificate, "--client-key", &path("nowhere")], "nowhere: No such file or directory"),
        (["--client-cert", &path("nothing"), "--client-key", &key], "nothing: contains no certificate in PEM form"),
        (["--client-cert", &path("no-certificate"), "--client-key", &key], "no-certificate: contains no valid certificate"),
        (["--client-cert", &certificate, "--client-key", &path("nothing")], "nothing: contains no private key in PEM form"),
        (["--client-cert", &certificate, "--client-key", &path("secret")], "secret: contains no private key in PEM form"),
        (["--client-cert", &certificate, "--client-key", &certificate], "contains no private key in PEM form"),
        (["--client-cert", &certificate, "--client-key", &text(&untrusted.key)], "is not the key of the certificate in "),
    ] {
        let flags: Vec<&str> = flags.into_iter().filter(|flag| !flag.is_empty()).collect();
        let (code, complaint) = status_complaint(&flags);
        let is_as_expected = complaint.to_lowercase().contains(&expected.to_lowercase());
        assert!(code == Some(2) && is_as_expected && !complaint.contains("hunter2"), "{flags:?}: {complaint}");
    }
}

/// A server that gives the same answer to every request and records the requests.
struct RecordingServer {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl RecordingServer {
    fn start(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (heads, answer) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(answer));
        let seen = Arc::clone(&heads);
        // the thread ends with the test's process
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, seen, answer) = (stream.unwrap(), Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let lines = BufReader::new(stream.try_clone().unwrap().take(1 << 16)).lines();
                    let head: Vec<String> = lines.map_while(|line| line.ok().filter(|line| !line.is_empty())).collect();
                    seen.lock().unwrap().push(head.join("\n"));
                    // the client may close the connection in the middle of the answer
                    let _ = answer(&mut stream);
                });
            }
        });
        Self { url, heads }
    }

    /// Answers with a head, and then with the same bytes without end.
    fn endless(head: &'static str, again: &'static [u8]) -> Self {
        let chunk = again.repeat((64 << 10) / again.len());
        Self::start(move |stream| {
            stream.write_all(head.as_bytes())?;
            loop {
                stream.write_all(&chunk)?;
            }
        })
    }

    fn redirecting(status: u16, to: &str) -> Self {
        let answer = format!("HTTP/1.1 {status} Elsewhere\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        Self::start(move |stream| stream.write_all(answer.as_bytes()))
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

#[test]
fn commands_give_up_on_an_endless_answer() {
    let json = RecordingServer::endless("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[", b"0,");
    let refusal = RecordingServer::endless("HTTP/1.1 503 No\r\nContent-Type: application/problem+json\r\n\r\n[", b"0,");
    let event = RecordingServer::endless("HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n{", b"\"a\":0,");
    for (server, arguments, expected) in [
        (&json, &["status"][..], "sends an answer of more than 64 MiB"),
        (&json, &["get", "nodes"], "sends an answer of more than 64 MiB"),
        (&json, &["lookup", "10.0.0.1", "10.0.0.2"], "sends an answer of more than 64 MiB"),
        (&json, &["healthcheck"], "sends an answer of more than 64 MiB"),
        (&refusal, &["status"], "sends an answer of more than 1 MiB"),
        (&refusal, &["watch"], "sends an answer of more than 1 MiB"),
        (&event, &["watch"], "sends an event of more than 64 MiB"),
    ] {
        let started = Instant::now();
        let (code, text) = exit_code_and_error(&run(&server.url, arguments));
        assert!(code == Some(3) && text.contains(expected) && text.contains("give another address with --server"), "{arguments:?}: {text}");
        assert!(started.elapsed() < GIVE_UP_MAX, "{arguments:?}: {:?}", started.elapsed());
    }
}

#[test]
fn no_redirect_sends_a_token_to_another_server() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "open sesame\n").unwrap();
    let token = token.to_str().unwrap();
    let other = RecordingServer::start(|stream| stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"));
    let port = other.url.rsplit(':').next().unwrap();
    // another port, another name for the same address, another scheme
    for target in [format!("{}/v1/status", other.url), format!("http://localhost:{port}/hunter2"), format!("https://127.0.0.1:{port}/")] {
        for status in [301, 302, 307, 308] {
            let server = RecordingServer::redirecting(status, &target);
            for arguments in [&["status"][..], &["lookup", "10.0.0.1", "10.0.0.2"], &["watch"], &["healthcheck"], &["get", "nodes"]] {
                let (code, text) = exit_code_and_error(&run(&server.url, &[arguments, &["--token-file", token]].concat()));
                assert!(code == Some(3) && text.contains("and the command does not follow"), "{arguments:?}: {text}");
                assert!(!text.contains("hunter2"), "{text}");
            }
            assert!(server.heads().iter().all(|head| head.contains("open sesame")), "{:?}", server.heads());
        }
    }
    assert_eq!(other.heads(), [""; 0]);
    // a redirect to the same server is followed, but only a limited number of times
    let server = RecordingServer::redirecting(302, "/elsewhere/v1/status");
    let (code, text) = exit_code_and_error(&run(&server.url, &["status", "--token-file", token]));
    assert!(code == Some(3) && text.contains("redirects too often"), "{text}");
    let paths: Vec<String> = server.heads().iter().map(|head| head.split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(paths.len(), 4, "{paths:?}");
    assert!(paths[1..].iter().all(|path| path == "/elsewhere/v1/status"), "{paths:?}");
}
