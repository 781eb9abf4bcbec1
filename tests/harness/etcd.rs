//! Real etcd servers for tests: each on loopback ports of its own, in a directory of its own, gone when dropped.
//!
//! Nothing here stands in for etcd. `ETCD_BIN` names the binary (default: `etcd` on the path), `ETCD35_BIN` and `ETCD37_BIN` two more
//! (default: `target/tools/etcd-3.5/etcd` and the like).

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

/// The password of the user `root` once authentication is on; the harness itself goes on as that user.
const ROOT_PASSWORD: &str = "root-password";

/// How many operations etcd takes in one transaction (`--max-txn-ops`, default 128).
const TXN_OPERATIONS_MAX: usize = 128;

/// How often a start is tried on new ports, when another program took one between our look and etcd's bind.
const START_ATTEMPTS_MAX: usize = 5;

/// Where test servers and proxies listen: below Linux's range for outgoing connections (32768 up), so that a stopped server's port is
/// not taken by a passing connection before its restart.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

/// The ports that this process has had, of servers that are gone too: a session of another test may still look for its server there, and would
/// write its quorum checks into whichever came next.
static PORTS_TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// How clients reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    /// Plain TCP.
    None,
    /// The server has a certificate, clients need none.
    Server,
    /// Both sides have one (`--client-cert-auth`); the client's common name is `meshkeep`.
    Mutual,
}

/// How a server is started; the same flags again at each restart.
#[derive(Debug, Clone)]
pub(crate) struct EtcdBuilder {
    binary: PathBuf,
    tls: Tls,
    cluster_token: String,
    auth_token_ttl_s: Option<u32>,
    max_request_bytes: Option<u64>,
    watch_progress_interval: Option<String>,
    flags: Vec<String>,
    /// The member's name and all members, where it is one of several.
    membership: Option<(String, String)>,
}

/// A running (or stopped, or wiped) etcd with one member, or one of several.
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

/// Every etcd binary at hand: the default one and, where they are, 3.5 and 3.7.
pub(crate) fn etcd_binaries() -> Vec<PathBuf> {
    let newer = [("ETCD35_BIN", "etcd-3.5"), ("ETCD37_BIN", "etcd-3.7")].into_iter().filter_map(|(variable, directory)| {
        let cached = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(directory).join("etcd");
        std::env::var_os(variable).map(PathBuf::from).or_else(|| cached.exists().then_some(cached))
    });
    std::iter::once(default_binary()).chain(newer).collect()
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

    /// `--initial-cluster-token`: etcd derives its cluster id from it (and from the peer address).
    pub(crate) fn cluster_token(mut self, token: &str) -> Self {
        self.cluster_token = token.into();
        self
    }

    /// `--auth-token-ttl`, in seconds.
    pub(crate) fn auth_token_ttl_s(mut self, seconds: u32) -> Self {
        self.auth_token_ttl_s = Some(seconds);
        self
    }

    /// `--max-request-bytes` (etcd's default: 1.5 MiB).
    pub(crate) fn max_request_bytes(mut self, bytes: u64) -> Self {
        self.max_request_bytes = Some(bytes);
        self
    }

    /// How often the server says to a watch without changes how far it is.
    pub(crate) fn watch_progress_interval(mut self, interval: &str) -> Self {
        self.watch_progress_interval = Some(interval.into());
        self
    }

    /// Any other flag, as `--name=value`.
    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Starts the server and waits until it serves.
    pub(crate) async fn start(self) -> Etcd {
        let mut etcd = self.prepare();
        for _ in 0..START_ATTEMPTS_MAX {
            (etcd.client_port, etcd.peer_port) = (take_port(), take_port());
            if etcd.try_start().await {
                return etcd;
            }
            etcd.wipe_files();
        }
        panic!("etcd did not find free ports in {START_ATTEMPTS_MAX} attempts");
    }

    /// A server that has a directory and no ports yet.
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

    /// A plain server with the defaults.
    pub(crate) async fn start() -> Self {
        Self::builder().start().await
    }

    /// `http://127.0.0.1:port` or `https://…`.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.builder.tls == Tls::None { "http" } else { "https" };
        format!("{scheme}://127.0.0.1:{}", self.client_port)
    }

    /// The port that clients connect to.
    pub(crate) fn port(&self) -> u16 {
        self.client_port
    }

    /// The authority that signed the server's certificate and that it trusts for clients.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The server's pair, which it reads anew for each connection.
    pub(crate) fn server_pair(&self) -> &Pair {
        &self.server_pair
    }

    /// The pair of the client `meshkeep`.
    pub(crate) fn client_pair(&self) -> &Pair {
        &self.client_pair
    }

    /// Where the server keeps everything; also free for a test's own files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.as_ref().expect("must be there until dropped").path()
    }

    /// Stops the server in order (SIGTERM) and waits for its end.
    pub(crate) async fn stop(&mut self) {
        let mut child = self.child.take().expect("must be running to be stopped");
        signal(&child, "TERM");
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "etcd does not end on SIGTERM");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills the server (SIGKILL).
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Freezes the server (SIGSTOP): connections stay open, nothing answers. [`Etcd::resume`] or dropping it ends that.
    pub(crate) fn pause(&self) {
        signal(self.child.as_ref().expect("must be running to be paused"), "STOP");
    }

    /// Lets a frozen server go on (SIGCONT).
    pub(crate) fn resume(&self) {
        signal(self.child.as_ref().expect("must be running to be resumed"), "CONT");
    }

    /// Deletes all data of a server, killing it first. Users and authentication are gone with it.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        self.wipe_files();
        self.user = None;
    }

    /// Starts the server again on the same ports, with the same flags, on whatever data there is; stops it first if it runs.
    pub(crate) async fn restart(&mut self) {
        if self.child.is_some() {
            self.stop().await;
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.try_start().await {
            assert!(Instant::now() < deadline, "port {} or {} stays taken", self.client_port, self.peer_port);
        }
    }

    /// Another `--initial-cluster-token` for the next start; it counts only on wiped data.
    pub(crate) fn set_cluster_token(&mut self, token: &str) {
        self.builder.cluster_token = token.into();
    }

    /// Starts the process and waits until it serves; false if a port was taken.
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
        let alone = ("test".to_owned(), format!("test={peer_url}"));
        let (name, members) = self.builder.membership.as_ref().unwrap_or(&alone);
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
            // quick elections and no waiting for the disk: the tests' data need not outlive a power cut
            .args(["--heartbeat-interval=20", "--election-timeout=200", "--unsafe-no-fsync=true"]);
        // a flag that has another name since 3.6; of variables the unknown ones are passed over
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
    /// A client of the tests' own, as `root` once authentication is on. A member that knows no leader at the moment lets nobody log in.
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

    /// Turns authentication on. The user may read and write below `cilium/`; the harness's own client goes on as `root`,
    /// and [`Etcd::client_file_yaml`] names the user from now on.
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

    /// Leaves the user no more than Cilium's role `remote` (`clustermesh-apiserver/etcdinit`): one cluster's own keys, to be read.
    pub(crate) async fn restrict_to_remote(&self, cluster: &str) {
        let mut client = self.client().await;
        let prefix = RoleRevokePermissionOptions::new().with_prefix();
        client.role_revoke_permission("mesh", "cilium/", Some(prefix)).await.unwrap();
        for permission in users::remote_permissions(cluster) {
            client.role_grant_permission("mesh", permission).await.unwrap();
        }
    }

    /// The etcd client file that meshkeep would read to get here.
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
            // nothing can be done about a failure here, and a panic in drop would hide the test's own
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

/// Sends a signal by the shell's own `kill`: the standard library knows only SIGKILL.
fn signal(child: &Child, name: &str) {
    let command = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
}

/// A port that this process has not had before and that can be bound now. Another process may still be quicker: then the server's start fails and
/// is tried on other ports.
pub(crate) fn take_port() -> u16 {
    let mut guard = PORTS_TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let taken = guard.get_or_insert_default();
    loop {
        assert!(taken.len() < PORTS.len() / 2, "this process has had too many ports");
        let port = rand::random_range(PORTS);
        if !taken.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            taken.insert(port);
            return port;
        }
    }
}
