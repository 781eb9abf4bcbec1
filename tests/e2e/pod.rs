//! A pod with the image: its root directory has only the files that the Containerfile puts there,
//! no shell and no curl. Only the binary itself can run probes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::harness::certificates::Authority;
use crate::harness::etcd::unused_port;
use crate::harness::{PATIENCE, eventually};

/// User id that the Containerfile sets.
const USER: u32 = 65_532;

/// Group of a volume, as `fsGroup` sets it.
const GROUP: u32 = 3_000;

/// Maximum time of a probe that gets no answer. The command gives up after 5 s, a kubelet often
/// sooner.
const SILENT_PROBE_MAX: Duration = Duration::from_secs(10);

/// Directory in which the Containerfile stages the root of the image.
const STAGED: &str = "/image/";

/// A root directory with its mounts and the environment of its container.
struct Pod {
    root: TempDir,
    environment: Vec<(String, String)>,
    /// User and groups, as arguments of chroot(8).
    user: [String; 2],
    sidecar: Option<Child>,
}

impl Pod {
    /// Creates a pod without starting it.
    fn new(environment: &[(&str, &str)]) -> Self {
        // in the binary's directory tree, so that hard links are possible
        let root = tempfile::Builder::new().prefix("pod-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let user = [format!("--userspec={USER}:{USER}"), "--groups=".to_owned()];
        let pod = Self { root, environment, user, sidecar: None };
        for path in staged() {
            pod.stage(&path);
        }
        for library in libraries(Path::new(env!("CARGO_BIN_EXE_meshkeep"))) {
            fs::copy(&library, pod.host_path(library.to_str().unwrap())).unwrap();
        }
        // mounted by a kubelet
        pod.mount("/var/lib/cilium/clustermesh/nowhere", "endpoints:\n- http://127.0.0.1:1\n");
        pod
    }

    /// Copies one file as the Containerfile does.
    fn stage(&self, path: &str) {
        let target = self.host_path(path);
        match path {
            "/meshkeep" => fs::hard_link(env!("CARGO_BIN_EXE_meshkeep"), target).unwrap(),
            "/etc/ssl/certs/ca-certificates.crt" => drop(fs::copy(path, target).unwrap()),
            "/etc/passwd" => fs::write(target, format!("meshkeep:x:{USER}:{USER}::/:/sbin/nologin\n")).unwrap(),
            "/etc/nsswitch.conf" => fs::write(target, "hosts: files dns\n").unwrap(),
            "/tmp" => {
                fs::create_dir(&target).unwrap();
                fs::set_permissions(target, fs::Permissions::from_mode(0o1777)).unwrap();
            }
            "/var/lib/meshkeep" => {
                fs::create_dir(&target).unwrap();
                if is_root() {
                    chown(target, Some(USER), Some(USER)).unwrap();
                }
            }
            other => panic!("the Containerfile stages {other}, which this test does not support"),
        }
    }

    /// Returns the path of a pod's file on this machine, and creates its parent directories.
    fn host_path(&self, path: &str) -> PathBuf {
        let target = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        target
    }

    /// Writes a file that any user in the pod may read.
    fn mount(&self, path: &str, text: impl AsRef<[u8]>) {
        let target = self.host_path(path);
        fs::write(&target, text).unwrap();
        fs::set_permissions(target, fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// Returns a process of the pod: the binary in its root, with the pod's environment, as its
    /// user. Without root privileges the test's own user is the only one.
    fn process(&self, arguments: &[&str]) -> Command {
        let mut command;
        if is_root() {
            command = Command::new("/usr/sbin/chroot");
            command.args(&self.user).arg(self.root.path());
        } else {
            command = Command::new("/usr/bin/unshare");
            command.arg("--map-root-user").arg("--root").arg(self.root.path());
        }
        command.arg("/meshkeep").args(arguments).env_clear().envs(self.environment.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Starts the container with the Containerfile's arguments and these.
    fn start(&mut self, arguments: &[&str]) {
        let log = fs::File::create(self.root.path().with_extension("log")).unwrap();
        let mut serve = self.process(&[&["serve"], arguments].concat());
        self.sidecar = Some(serve.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    /// Runs an exec probe.
    fn probe(&self, arguments: &[&str]) -> Output {
        self.process(&[&["healthcheck"], arguments].concat()).output().unwrap()
    }

    /// Runs an exec probe. Returns its exit code and its output.
    fn exit_code_and_text(&self, arguments: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } = self.probe(arguments);
        (status.code().unwrap(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
    }

    /// Runs the startup probe until it succeeds.
    async fn wait_until_up(&self, arguments: &[&str]) {
        eventually("the startup probe to succeed", || {
            std::future::ready((self.exit_code_and_text(arguments) == (0, String::new())).then_some(()))
        })
        .await;
    }

    /// Waits until a probe for all clusters names the unreachable one, which shows that the
    /// directory was read.
    async fn wait_until_cluster_reported(&self, arguments: &[&str]) {
        let asked = [arguments, &["--synced"]].concat();
        let is_shown = || {
            let (code, text) = self.exit_code_and_text(&asked);
            let is_named = text.contains("[-]cluster/nowhere failed: ") && text.contains("readyz check failed");
            std::future::ready((code == 1 && is_named).then_some(()))
        };
        eventually("the cluster to be reported", is_shown).await;
    }

    fn signal(&self, name: &str) {
        let id = self.sidecar.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Suspends the container, and waits until each of its threads has stopped: on a busy machine a
    /// thread may still answer a request after the signal.
    async fn suspend(&self) {
        self.signal("STOP");
        let threads = format!("/proc/{}/task", self.sidecar.as_ref().unwrap().id());
        let is_stopped = |thread: fs::DirEntry| {
            let state = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            state.rsplit(')').next().is_some_and(|fields| fields.starts_with(" T"))
        };
        let are_stopped = || fs::read_dir(&threads).unwrap().flatten().all(is_stopped);
        eventually("all threads to stop", || std::future::ready(are_stopped().then_some(()))).await;
    }

    /// Sends SIGTERM and returns the exit code of the container.
    async fn stop(&mut self) -> Option<i32> {
        self.signal("TERM");
        let mut sidecar = self.sidecar.take().unwrap();
        let status = eventually("the container to end", || std::future::ready(sidecar.try_wait().unwrap())).await;
        status.code()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let log = self.root.path().with_extension("log");
        if let Some(mut sidecar) = self.sidecar.take() {
            // a failure cannot be handled here, and a panic in `drop` would hide the test's panic
            let _ = sidecar.kill();
            let _ = sidecar.wait();
        }
        if std::thread::panicking() {
            eprintln!("the pod's log:\n{}", fs::read_to_string(&log).unwrap_or_default());
        }
        let _ = fs::remove_file(log);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the Containerfile's paths in the root of the image, without the stage's own directory.
fn staged() -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Containerfile")).unwrap();
    let words = text.split(|character: char| character.is_whitespace() || character == '>');
    words.filter_map(|word| word.strip_prefix(STAGED)).filter(|word| !word.is_empty()).map(|word| format!("/{word}")).collect()
}

/// Returns the shared libraries of a test binary, which is not static like the image's.
fn libraries(binary: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(binary).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

#[tokio::test]
async fn the_binary_alone_answers_all_probes() {
    let port = unused_port();
    let (listen, server) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}"));
    let mut pod = Pod::new(&[("MESHKEEP_LISTEN", &listen), ("MESHKEEP_SERVER", &server)]);
    let (code, text) = pod.exit_code_and_text(&[]);
    assert!(code == 3 && text.starts_with(&format!("error: no meshkeep at {listen}")), "{code} {text}");
    pod.start(&[]);
    pod.wait_until_up(&[]).await;
    assert_eq!(pod.exit_code_and_text(&["--live"]), (0, String::new()));
    // ready means that lookups are answered; an unreachable cluster does not matter
    pod.wait_until_cluster_reported(&[]).await;

    // a process that hangs is detected by the probe's timeout
    pod.suspend().await;
    let begun = Instant::now();
    let (code, text) = pod.exit_code_and_text(&["--live"]);
    assert!(code == 3 && text.contains("did not answer in time"), "{code} {text}");
    assert!(begun.elapsed() < SILENT_PROBE_MAX, "{:?}", begun.elapsed());
    pod.signal("CONT");
    assert_eq!(pod.exit_code_and_text(&["--live"]), (0, String::new()));
    assert_eq!(pod.stop().await, Some(0));
    assert_eq!(pod.exit_code_and_text(&["--live"]).0, 3);
}

#[tokio::test]
async fn probes_work_over_a_socket_tls_and_the_health_address() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(directory.path(), "ca"), Authority::new(directory.path(), "other"));
    let pair = authority.server("server", &["127.0.0.1"]);
    let (tls, health) = (format!("127.0.0.1:{}", unused_port()), format!("127.0.0.1:{}", unused_port()));
    let mut pod = Pod::new(&[]);
    for (path, file) in [
        ("/etc/meshkeep/tls.crt", pair.certificate.as_path()),
        ("/etc/meshkeep/tls.key", pair.key.as_path()),
        ("/etc/meshkeep/ca.crt", authority.certificate()),
        ("/etc/meshkeep/other.crt", other.certificate()),
    ] {
        pod.mount(path, fs::read(file).unwrap());
    }
    pod.mount("/etc/meshkeep/token", "open sesame\n");
    let keys = ["--tls-cert", "/etc/meshkeep/tls.crt", "--tls-key", "/etc/meshkeep/tls.key", "--token-file", "/etc/meshkeep/token"];
    pod.start(&[&keys[..], &["--listen", &tls, "--listen", "unix:///tmp/meshkeep.sock", "--health-listen", &health]].concat());
    let (socket, tls, health) = ("unix:///tmp/meshkeep.sock", format!("https://{tls}"), format!("http://{health}"));
    pod.wait_until_up(&["--server", socket]).await;
    // probes need no token, because a kubelet has none, but over TLS they need a trusted authority
    for server in [&["--server", socket][..], &["--server", &tls, "--ca-file", "/etc/meshkeep/ca.crt"], &["--server", &health]] {
        for probe in [&[][..], &["--live"]] {
            assert_eq!(pod.exit_code_and_text(&[server, probe].concat()), (0, String::new()), "{server:?} {probe:?}");
        }
        // clients without a token get no names
        let asked = [server, &["--synced"]].concat();
        let is_refused_without_names = || {
            let (code, text) = pod.exit_code_and_text(&asked);
            std::future::ready((code == 1 && text.contains("not ok") && !text.contains("nowhere")).then_some(()))
        };
        eventually("an answer without names", is_refused_without_names).await;
    }
    let with_token = ["--server", &tls, "--ca-file", "/etc/meshkeep/ca.crt", "--token-file", "/etc/meshkeep/token"];
    assert_eq!(pod.exit_code_and_text(&with_token), (0, String::new()));
    pod.wait_until_cluster_reported(&with_token).await;
    for untrusted in [&["--server", &tls][..], &["--server", &tls, "--ca-file", "/etc/meshkeep/other.crt"]] {
        let (code, text) = pod.exit_code_and_text(untrusted);
        assert!(code == 3 && text.contains("certificate"), "{untrusted:?}: {code} {text}");
    }
    let (code, text) = pod.exit_code_and_text(&["--server", &tls, "--ca-file", "/etc/meshkeep/nowhere.crt"]);
    assert!(code == 2 && text.contains("--ca-file /etc/meshkeep/nowhere.crt"), "{code} {text}");
    let (code, text) = pod.exit_code_and_text(&["--live", "--synced"]);
    assert!(code == 2 && text.contains("--synced"), "{code} {text}");
    assert_eq!(pod.stop().await, Some(0));
}

/// A volume as a kubelet mounts it with `fsGroup`: owned by root and writable for its group. Also
/// with another user id, as `runAsUser` sets it.
#[tokio::test]
async fn a_group_writable_volume_is_enough_for_any_user_id() {
    // without root privileges there are no other users
    if !is_root() {
        return;
    }
    let mut pod = Pod::new(&[]);
    let volume = pod.host_path("/var/lib/volume/data").parent().unwrap().to_owned();
    chown(&volume, Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2775)).unwrap();
    let listen = ["--listen", "unix:///tmp/meshkeep.sock", "--data-dir", "/var/lib/volume"];
    let socket = ["--server", "unix:///tmp/meshkeep.sock"];
    for user in [USER, USER + 1] {
        pod.user = [format!("--userspec={user}:{user}"), format!("--groups={GROUP}")];
        pod.start(&listen);
        pod.wait_until_up(&socket).await;
        pod.wait_until_cluster_reported(&socket).await;
        assert_eq!(pod.stop().await, Some(0));
        let owners: BTreeSet<u32> = fs::read_dir(&volume).unwrap().map(|entry| entry.unwrap().metadata().unwrap().uid()).collect();
        assert_eq!(owners, BTreeSet::from([user]));
        for entry in fs::read_dir(&volume).unwrap() {
            let path = entry.unwrap().path();
            // a kubelet gives existing files to the group, so that another user of the group has
            // the owner's access; here that user becomes the owner
            let given = Command::new("chown").arg("-R").arg(format!("{}:{GROUP}", USER + 1)).arg(path).status().unwrap();
            assert!(given.success());
        }
    }
    // without the group there is no access, and the message says so
    pod.user = [format!("--userspec={USER}:{USER}"), "--groups=".to_owned()];
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2770)).unwrap();
    let output = pod.process(&[&["serve"], &listen[..]].concat()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("/var/lib/volume") && text.contains("ermission denied"), "{text}");
}

/// The files that the build stage copies are enough for cargo, and contain everything that the code
/// includes.
#[test]
fn the_image_build_has_every_file_that_it_needs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("Containerfile")).unwrap();
    for line in [format!("USER {USER}:{USER}"), r#"ENTRYPOINT ["/meshkeep"]"#.to_owned(), r#"CMD ["serve"]"#.to_owned()] {
        assert!(text.lines().any(|own| own == line), "the Containerfile has no line {line}");
    }
    let copied = text.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--from"));
    let copied: Vec<&str> = copied.flat_map(|line| line.split(' ')).filter(|word| *word != "./").collect();
    let ignored = fs::read_to_string(root.join(".containerignore")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for name in &copied {
        assert!(ignored.lines().any(|line| line == format!("!{name}")), ".containerignore keeps {name} from the build");
        assert!(Command::new("cp").arg("-r").arg(root.join(name)).arg(directory.path()).status().unwrap().success(), "{name}");
    }
    let mut metadata = Command::new(env!("CARGO"));
    let output = metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(directory.path()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // included files are copied, or belong to tests
    let found = Command::new("grep").args(["-rnE", r#"include_(str|bytes)!\("\.\./"#, "src"]).current_dir(root).output().unwrap();
    for line in String::from_utf8(found.stdout).unwrap().lines().filter(|line| !line.contains("/tests/") && !line.contains("tests.rs")) {
        let (file, rest) = line.split_once(':').unwrap();
        let included = Path::new(file).parent().unwrap().join(rest.split('"').nth(1).unwrap());
        assert!(directory.path().join(&included).exists(), "{line}: the build stage does not copy {}", included.display());
    }
}

/// The patience of the tests must be longer than the timeout of a probe.
const _: () = assert!(SILENT_PROBE_MAX.as_secs() < PATIENCE.as_secs());
