//! Real etcd servers for tests. Each has its own loopback ports and its own directory, and ends
//! when it is dropped.
//!
//! `ETCD_BIN` names the binary (default: `etcd` on the path). `ETCD35_BIN`, `ETCD36_BIN` and
//! `ETCD37_BIN` name further ones (default: `target/tools/etcd-3.5/etcd` and so on).

mod members;
mod users;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, RoleRevokePermissionOptions, Txn, TxnOp};
use tempfile::TempDir;

use super::certificates::{Authority, Pair};
use super::{PATIENCE, eventually};
pub(crate) use members::EtcdMembers;

/// Password of the user `root` once authentication is enabled. The harness itself then connects as
/// `root`.
const ROOT_PASSWORD: &str = "root-password";

/// Maximum number of operations in one etcd transaction (`--max-txn-ops`, default 128).
const TXN_OPERATIONS_MAX: usize = 128;

/// Maximum number of attempts to start on new ports. An attempt fails if another program takes a
/// port before etcd binds it.
const START_ATTEMPTS_MAX: usize = 5;

/// Ports of test servers and proxies. They are below Linux's range for outgoing connections (from
/// 32768), so that an outgoing connection does not take the port of a stopped server before its
/// restart.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

/// Ports that this process has used, including those of ended servers. The kvstore session of
/// another test may still try to reach an ended server, and would write its quorum checks into a
/// new server on the same port.
static PORTS_TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Transport security of the client port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    /// Plain TCP.
    None,
    /// The server has a certificate; clients need none.
    Server,
    /// Both sides have a certificate (`--client-cert-auth`). The client's common name is
    /// `meshkeep`.
    Mutual,
}

/// Options of an etcd server. A restart uses the same flags again.
#[derive(Debug, Clone)]
pub(crate) struct EtcdBuilder {
    binary: PathBuf,
    tls: Tls,
    cluster_token: String,
    auth_token_ttl_s: Option<u32>,
    max_request_bytes: Option<u64>,
    watch_progress_interval: Option<String>,
    flags: Vec<String>,
    /// Name of this member and `--initial-cluster`, if the etcd has several members.
    membership: Option<(String, String)>,
}

/// An etcd member. It can be stopped, killed, wiped and restarted.
pub(crate) struct Etcd {
    builder: EtcdBuilder,
    directory: Option<TempDir>,
    authority: Authority,
    server_pair: Pair,
    client_pair: Pair,
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
    starts: u32,
    user: Option<(String, String)>,
}

/// Returns the etcd binaries of most tests: the default one and, if they exist, 3.5 and 3.7.
pub(crate) fn etcd_binaries() -> Vec<PathBuf> {
    binaries_of(&["3.5", "3.7"])
}

/// Returns every available etcd binary: the default one and, if they exist, 3.5, 3.6 and 3.7.
pub(crate) fn all_etcd_binaries() -> Vec<PathBuf> {
    binaries_of(&["3.5", "3.6", "3.7"])
}

fn binaries_of(versions: &[&str]) -> Vec<PathBuf> {
    let others = versions.iter().filter_map(|version| {
        let default_path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/tools/etcd-{version}/etcd"));
        let variable = format!("ETCD{}_BIN", version.replace('.', ""));
        std::env::var_os(variable).map(PathBuf::from).or_else(|| default_path.exists().then_some(default_path))
    });
    std::iter::once(default_binary()).chain(others).collect()
}

fn default_binary() -> PathBuf {
    std::env::var_os("ETCD_BIN").map_or_else(|| "etcd".into(), PathBuf::from)
}

impl EtcdBuilder {
    pub(crate) fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = binary.into();
        self
    }

    pub(crate) fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Sets `--initial-cluster-token`. etcd derives its cluster id from it (and from the peer
    /// address).
    pub(crate) fn cluster_token(mut self, token: &str) -> Self {
        self.cluster_token = token.into();
        self
    }

    /// Sets `--auth-token-ttl`, in seconds.
    pub(crate) fn auth_token_ttl_s(mut self, seconds: u32) -> Self {
        self.auth_token_ttl_s = Some(seconds);
        self
    }

    /// Sets `--max-request-bytes` (etcd's default: 1.5 MiB).
    pub(crate) fn max_request_bytes(mut self, bytes: u64) -> Self {
        self.max_request_bytes = Some(bytes);
        self
    }

    /// Sets the interval of progress notifications to idle watches.
    pub(crate) fn watch_progress_interval(mut self, interval: &str) -> Self {
        self.watch_progress_interval = Some(interval.into());
        self
    }

    /// Adds any other flag, as `--name=value`.
    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.into());
        self
    }

    pub(crate) async fn start(self) -> Etcd {
        let mut etcd = self.prepare();
        for _ in 0..START_ATTEMPTS_MAX {
            (etcd.client_port, etcd.peer_port) = (unused_port(), unused_port());
            if etcd.try_start().await {
                return etcd;
            }
            etcd.wipe_files();
        }
        panic!("etcd did not find free ports in {START_ATTEMPTS_MAX} attempts");
    }

    /// Creates the directory of a server. The ports are chosen when it starts.
    fn prepare(self) -> Etcd {
        let directory = tempfile::Builder::new().prefix("meshkeep-etcd-").tempdir().unwrap();
        let authority = Authority::new(&directory.path().join("certificates"), "ca");
        let server_pair = authority.server("server", &["localhost", "127.0.0.1"]);
        let client_pair = authority.client("meshkeep");
        Etcd {
            builder: self,
            directory: Some(directory),
            authority,
            server_pair,
            client_pair,
            client_port: 0,
            peer_port: 0,
            child: None,
            starts: 0,
            user: None,
        }
    }
}

impl Etcd {
    pub(crate) fn builder() -> EtcdBuilder {
        EtcdBuilder {
            binary: default_binary(),
            tls: Tls::None,
            cluster_token: "meshkeep-test".into(),
            auth_token_ttl_s: None,
            max_request_bytes: None,
            watch_progress_interval: None,
            flags: Vec::new(),
            membership: None,
        }
    }

    /// Starts a server with the default options.
    pub(crate) async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns the client URL, `http://127.0.0.1:port` or `https://…`.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.builder.tls == Tls::None { "http" } else { "https" };
        format!("{scheme}://127.0.0.1:{}", self.client_port)
    }

    /// Returns the port for clients.
    pub(crate) fn port(&self) -> u16 {
        self.client_port
    }

    /// Returns the authority that signed the server's certificate, and that the server trusts for
    /// client certificates.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the server's certificate. The server reads it again for each connection.
    pub(crate) fn server_pair(&self) -> &Pair {
        &self.server_pair
    }

    /// Returns the certificate of the client `meshkeep`.
    pub(crate) fn client_pair(&self) -> &Pair {
        &self.client_pair
    }

    /// Returns the server's directory. Tests may write their own files there.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.as_ref().expect("the directory exists until drop").path()
    }

    /// Stops the server with SIGTERM and waits for its end.
    pub(crate) async fn stop(&mut self) {
        let mut child = self.child.take().expect("must be running to be stopped");
        signal(&child, "TERM");
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "etcd does not end on SIGTERM");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Freezes the server with SIGSTOP: connections stay open, but nothing answers.
    /// [`Etcd::resume`] or dropping the server ends that.
    pub(crate) fn pause(&self) {
        signal(self.child.as_ref().expect("must be running to be paused"), "STOP");
    }

    /// Resumes a frozen server with SIGCONT.
    pub(crate) fn resume(&self) {
        signal(self.child.as_ref().expect("must be running to be resumed"), "CONT");
    }

    /// Kills the server and deletes all of its data, including users and authentication.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        self.wipe_files();
        self.user = None;
    }

    /// Starts the server again on the same ports, with the same flags and the data that exists.
    /// Stops it first if it runs.
    pub(crate) async fn restart(&mut self) {
        if self.child.is_some() {
            self.stop().await;
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.try_start().await {
            assert!(Instant::now() < deadline, "port {} or {} stays taken", self.client_port, self.peer_port);
        }
    }

    /// Sets `--initial-cluster-token` for the next start. It has an effect only after a wipe.
    pub(crate) fn set_cluster_token(&mut self, token: &str) {
        self.builder.cluster_token = token.into();
    }

    /// Starts the process and waits until it serves. Returns false if a port was in use.
    async fn try_start(&mut self) -> bool {
        self.starts += 1;
        let log_path = self.directory().join(format!("etcd-{}.log", self.starts));
        let log = fs::File::create(&log_path).unwrap();
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {:?} (is ETCD_BIN right?): {e}", self.builder.binary));
        self.child = Some(child);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(&log_path).unwrap_or_default();
            let ended = self.child.as_mut().expect("was just set").try_wait().unwrap();
            if let Some(status) = ended {
                self.child = None;
                assert!(text.contains("address already in use"), "etcd ended with {status}:\n{text}");
                return false;
            }
            if text.contains("ready to serve client requests") {
                return true;
            }
            assert!(Instant::now() < deadline, "etcd does not become ready:\n{text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.builder.binary);
        let peer_url = self.peer_url();
        let single_member = ("test".to_owned(), format!("test={peer_url}"));
        let (name, members) = self.builder.membership.as_ref().unwrap_or(&single_member);
        command
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .arg(format!("--name={name}"))
            .arg(format!("--data-dir={}", self.data_directory().display()))
            .arg(format!("--listen-client-urls={}", self.url()))
            .arg(format!("--advertise-client-urls={}", self.url()))
            .arg(format!("--listen-peer-urls={peer_url}"))
            .arg(format!("--initial-advertise-peer-urls={peer_url}"))
            .arg(format!("--initial-cluster={members}"))
            .arg(format!("--initial-cluster-token={}", self.builder.cluster_token))
            // quick elections and no fsync: the data of tests does not have to survive a power cut
            .args(["--heartbeat-interval=20", "--election-timeout=200", "--unsafe-no-fsync=true"]);
        // set as environment variables, because the flag was renamed in 3.6: etcd ignores the name
        // that it does not know
        for name in ["ETCD_EXPERIMENTAL_WATCH_PROGRESS_NOTIFY_INTERVAL", "ETCD_WATCH_PROGRESS_NOTIFY_INTERVAL"] {
            command.envs(self.builder.watch_progress_interval.iter().map(|interval| (name, interval)));
        }
        if self.builder.tls != Tls::None {
            command
                .arg(format!("--cert-file={}", self.server_pair.certificate.display()))
                .arg(format!("--key-file={}", self.server_pair.key.display()));
        }
        if self.builder.tls == Tls::Mutual {
            command.arg("--client-cert-auth").arg(format!("--trusted-ca-file={}", self.authority.certificate().display()));
        }
        command.args(self.builder.auth_token_ttl_s.map(|seconds| format!("--auth-token-ttl={seconds}")));
        command.args(self.builder.max_request_bytes.map(|bytes| format!("--max-request-bytes={bytes}")));
        command.args(&self.builder.flags);
        command
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    fn data_directory(&self) -> PathBuf {
        self.directory().join("data")
    }

    fn wipe_files(&self) {
        match fs::remove_dir_all(self.data_directory()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => panic!("cannot wipe {:?}: {e}", self.data_directory()),
            _ => {}
        }
    }
}

/// Test data and administration.
impl Etcd {
    /// Connects a client, as `root` once authentication is enabled. Retries, because a member
    /// without a leader refuses logins.
    pub(crate) async fn client(&self) -> Client {
        eventually("a client of etcd", async || self.try_client().await.ok()).await
    }

    async fn try_client(&self) -> Result<Client, etcd_client::Error> {
        let mut options = ConnectOptions::new().with_auto_token_refresh(true);
        if self.builder.tls != Tls::None {
            let read = |path: &Path| fs::read(path).unwrap();
            let mut tls = etcd_client::TlsOptions::new().ca_certificate(Certificate::from_pem(read(self.authority.certificate())));
            if self.builder.tls == Tls::Mutual {
                tls = tls.identity(Identity::from_pem(read(&self.client_pair.certificate), read(&self.client_pair.key)));
            }
            options = options.with_tls(tls);
        }
        if self.user.is_some() {
            options = options.with_user("root", ROOT_PASSWORD);
        }
        Client::connect([self.url()], Some(options)).await
    }

    /// Puts one key and returns the revision.
    pub(crate) async fn put(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> i64 {
        self.client().await.put(key, value, None).await.unwrap().header().unwrap().revision()
    }

    /// Deletes one key, which must exist, and returns the revision.
    pub(crate) async fn delete(&self, key: impl Into<Vec<u8>>) -> i64 {
        let reply = self.client().await.delete(key, None).await.unwrap();
        assert_eq!(reply.deleted(), 1);
        reply.header().unwrap().revision()
    }

    /// Puts many keys, in transactions of at most 128, and returns the last revision.
    pub(crate) async fn put_many<K: Into<Vec<u8>>, V: Into<Vec<u8>>>(&self, entries: impl IntoIterator<Item = (K, V)>) -> i64 {
        let mut client = self.client().await;
        let mut revision = 0;
        let mut entries = entries.into_iter().map(|(key, value)| TxnOp::put(key, value, None)).peekable();
        while entries.peek().is_some() {
            let operations: Vec<TxnOp> = entries.by_ref().take(TXN_OPERATIONS_MAX).collect();
            let reply = client.txn(Txn::new().and_then(operations)).await.unwrap();
            revision = reply.header().unwrap().revision();
        }
        revision
    }

    /// Compacts the history up to a revision.
    pub(crate) async fn compact(&self, revision: i64) {
        self.client().await.compact(revision, None).await.unwrap();
    }

    /// Enables authentication. `user` may read and write below `cilium/`. The harness's own client
    /// continues as `root`, and [`Etcd::client_file_yaml`] contains `user` from now on.
    pub(crate) async fn enable_auth(&mut self, user: &str, password: &str) {
        let mut client = self.client().await;
        client.role_add("root").await.unwrap();
        client.user_add("root", ROOT_PASSWORD, None).await.unwrap();
        client.user_grant_role("root", "root").await.unwrap();
        client.role_add("mesh").await.unwrap();
        client.role_grant_permission("mesh", Permission::read_write("cilium/").with_prefix()).await.unwrap();
        client.user_add(user, password, None).await.unwrap();
        client.user_grant_role(user, "mesh").await.unwrap();
        client.auth_enable().await.unwrap();
        self.user = Some((user.into(), password.into()));
    }

    /// Restricts the user of [`Etcd::enable_auth`] to the permissions of Cilium's role `remote`
    /// (`clustermesh-apiserver/etcdinit`), which may only read one cluster's own keys.
    pub(crate) async fn restrict_to_remote(&self, cluster: &str) {
        let mut client = self.client().await;
        let prefix = RoleRevokePermissionOptions::new().with_prefix();
        client.role_revoke_permission("mesh", "cilium/", Some(prefix)).await.unwrap();
        for permission in users::remote_permissions(cluster) {
            client.role_grant_permission("mesh", permission).await.unwrap();
        }
    }

    /// Returns the client file with which meshkeep connects to this server.
    pub(crate) fn client_file_yaml(&self) -> String {
        let mut text = format!("endpoints:\n- {}\n", self.url());
        if self.builder.tls != Tls::None {
            text += &format!("trusted-ca-file: {}\n", self.authority.certificate().display());
        }
        if self.builder.tls == Tls::Mutual {
            let Pair { certificate, key } = &self.client_pair;
            text += &format!("cert-file: {}\nkey-file: {}\n", certificate.display(), key.display());
        }
        if let Some((user, password)) = &self.user {
            text += &format!("username: {user}\npassword: {password}\n");
        }
        text
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // a failure cannot be handled here, and a panic in `drop` would hide the test's panic
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking()
            && let Some(directory) = self.directory.take()
        {
            eprintln!("etcd's data and log are kept in {}", directory.keep().display());
        }
    }
}

/// Sends a signal with the shell's `kill`, because the standard library only supports SIGKILL.
fn signal(child: &Child, name: &str) {
    let command = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
}

/// Returns a port that this process has not used before and that can be bound now. If another
/// process binds it first, the start of the server fails and is tried again on other ports.
pub(crate) fn unused_port() -> u16 {
    let mut guard = PORTS_TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let taken = guard.get_or_insert_default();
    loop {
        assert!(taken.len() < PORTS.len() / 2, "this process has used too many ports");
        let port = rand::random_range(PORTS);
        if !taken.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            taken.insert(port);
            return port;
        }
    }
}
