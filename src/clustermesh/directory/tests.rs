//! Tests with a real directory that is changed as people, editors and the kubelet change it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

/// Maximum time from a change of the directory to its event (docs/develop/invariants.md).
const EFFECT_WITHIN: Duration = Duration::from_secs(2);

struct WatchedDirectory {
    directory: TempDir,
    events: mpsc::Receiver<DirectoryEvent>,
    state: DirectoryState,
    rescan: Arc<Notify>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl WatchedDirectory {
    /// Watches `config` in a new directory that `prepare` has filled.
    fn start(prepare: impl FnOnce(&Path)) -> Self {
        let directory = TempDir::new().unwrap();
        prepare(directory.path());
        let rescan = Arc::<Notify>::default();
        let options = DirectoryOptions {
            remind_interval: crate::instruments::REMINDER_INTERVAL,
            path: directory.path().join("config"),
            ignored_clusters: Arc::new([name("home"), name("left-out")].into()),
            debounce: Duration::from_millis(100),
            rescan_interval: Duration::from_secs(60),
            rescan: Arc::clone(&rescan),
        };
        let (sender, events) = mpsc::channel(16);
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(watch_directory(options, sender, stop.clone()));
        Self { directory, events, state: DirectoryState::default(), rescan, stop, tasks }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    /// Returns the next event as `+name content`, `-name` or `all name name`, and `None` once the
    /// watch has ended. Stores states of the directory.
    async fn event(&mut self) -> Option<String> {
        Some(match self.events.recv().await? {
            DirectoryEvent::Upserted { cluster, path, content, .. } => {
                assert_eq!(path, self.path("config").join(cluster.as_str()));
                format!("+{cluster} {}", String::from_utf8(content.to_vec()).unwrap().trim_start_matches("endpoints: "))
            }
            DirectoryEvent::Removed { cluster } => format!("-{cluster}"),
            DirectoryEvent::FirstScan { present } => present.iter().fold("all".to_owned(), |text, cluster| format!("{text} {cluster}")),
            DirectoryEvent::StateChanged(state) => {
                self.state = state;
                return Box::pin(self.event()).await;
            }
        })
    }

    async fn next(&mut self) -> String {
        timeout(EFFECT_WITHIN, self.event()).await.expect("an event within 2 s").expect("the watch must not end")
    }

    async fn expect(&mut self, expected: &[&str]) {
        for expected in expected {
            assert_eq!(self.next().await, *expected);
        }
    }

    /// Waits for a state of the directory. Any other event before it is an error.
    async fn expect_state(&mut self, wanted: impl Fn(&DirectoryState) -> bool) -> DirectoryState {
        while !wanted(&self.state) {
            match timeout(EFFECT_WITHIN, self.events.recv()).await.expect("the state within 2 s") {
                Some(DirectoryEvent::StateChanged(state)) => self.state = state,
                other => panic!("{other:?} before the state"),
            }
        }
        self.state.clone()
    }

    /// Ends the watch, and checks that no event is left.
    async fn finish(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        assert_eq!(self.event().await, None);
    }
}

fn name(text: &str) -> ClusterName {
    ClusterName::parse(text).unwrap()
}

fn cluster_file(endpoint: &str) -> String {
    format!("endpoints: {endpoint}")
}

/// Writes files as `kubectl cp` or an editor would, in place.
fn put(directory: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(directory).unwrap();
    for (file, content) in files {
        fs::write(directory.join(file), content).unwrap();
    }
}

/// Updates a mount as Kubernetes' `AtomicWriter` does (`pkg/volume/util/atomic_writer.go`).
///
/// The steps are a new folder, the swap of `..data` by rename, links for new files, and the removal
/// of the links of deleted files and of the old folder.
fn kubelet_writes(mount: &Path, folder: &str, files: &[(&str, &str)]) {
    put(&mount.join(folder), files);
    let old = fs::read_link(mount.join("..data")).ok();
    symlink(folder, mount.join("..data_tmp")).unwrap();
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    for (file, _) in files.iter().filter(|(file, _)| fs::symlink_metadata(mount.join(file)).is_err()) {
        symlink(Path::new("..data").join(file), mount.join(file)).unwrap();
    }
    for entry in fs::read_dir(mount).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if !file.starts_with("..") && !files.iter().any(|(kept, _)| *kept == file) {
            fs::remove_file(mount.join(file)).unwrap();
        }
    }
    if let Some(old) = old {
        fs::remove_dir_all(mount.join(old)).unwrap();
    }
}

#[tokio::test]
async fn cluster_files_are_announced_and_other_files_are_ignored() {
    let mut watch = WatchedDirectory::start(|root| {
        let config = root.join("config");
        let files = [
            ("paris", "endpoints: a"),
            ("home", "endpoints: own"),
            ("left-out", "endpoints: peer"),
            ("common-etcd-client.crt", "CERT"),
            ("common", "CERT"),
        ];
        put(&config, &files);
        put(&config, &[(".hidden", "endpoints: x"), ("foo.yaml", "endpoints: x")]);
        fs::create_dir(config.join("folder")).unwrap();
    });
    watch.expect(&["+paris a", "all paris"]).await;
    assert!(!watch.state.readable, "the state follows the events");
    let state = watch.expect_state(|state| state.readable).await;
    assert_eq!(state.invalid.keys().collect::<Vec<_>>(), ["foo.yaml"]);

    fs::write(watch.path("config/tokyo"), cluster_file("b")).unwrap();
    watch.expect(&["+tokyo b"]).await;
    fs::write(watch.path("config/paris"), cluster_file("c")).unwrap();
    watch.expect(&["+paris c"]).await;
    fs::rename(watch.path("config/paris"), watch.path("config/lyon")).unwrap();
    watch.expect(&["+lyon c", "-paris"]).await;
    fs::write(watch.path("config/lyon"), "no cluster file any more").unwrap();
    watch.expect(&["-lyon"]).await;
    fs::remove_file(watch.path("config/tokyo")).unwrap();
    watch.expect(&["-tokyo"]).await;
    watch.finish().await;
}

#[tokio::test]
async fn swaps_of_a_mounted_secret_are_announced() {
    let paris = ("paris", "endpoints: a");
    let mut watch = WatchedDirectory::start(|root| {
        let mount = root.join("config");
        fs::create_dir(&mount).unwrap();
        kubelet_writes(&mount, "..2026_a", &[paris, ("tokyo", "endpoints: b"), ("common-etcd-client.key", "KEY")]);
    });
    watch.expect(&["+paris a", "+tokyo b", "all paris tokyo"]).await;
    let mount = watch.path("config");
    kubelet_writes(&mount, "..2026_b", &[paris, ("tokyo", "endpoints: c"), ("common-etcd-client.key", "KEY2")]);
    watch.expect(&["+tokyo c"]).await;
    kubelet_writes(&mount, "..2026_c", &[paris, ("lyon", "endpoints: d")]);
    watch.expect(&["+lyon d", "-tokyo"]).await;
    kubelet_writes(&mount, "..2026_d", &[("lyon", "endpoints: d")]);
    watch.expect(&["-paris"]).await;
    watch.finish().await;
}

#[tokio::test]
async fn a_chmod_storm_announces_nothing() {
    let mut watch = WatchedDirectory::start(|root| put(&root.join("config"), &[("paris", "endpoints: a"), ("tokyo", "endpoints: b")]));
    watch.expect(&["+paris a", "+tokyo b", "all paris tokyo"]).await;
    for mode in (0..50).flat_map(|_| [0o600, 0o644]) {
        fs::set_permissions(watch.path("config/paris"), fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(watch.path("config/tokyo"), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(watch.path("config/tokyo"), cluster_file("c")).unwrap();
    watch.expect(&["+tokyo c"]).await;
    watch.finish().await;
}

#[tokio::test]
async fn a_write_to_the_target_of_a_link_is_announced() {
    let mut watch = WatchedDirectory::start(|root| {
        put(&root.join("elsewhere"), &[("paris.conf", "endpoints: a")]);
        fs::create_dir(root.join("config")).unwrap();
        symlink(root.join("elsewhere/paris.conf"), root.join("config/paris")).unwrap();
    });
    watch.expect(&["+paris a", "all paris"]).await;
    fs::write(watch.path("elsewhere/paris.conf"), cluster_file("b")).unwrap();
    watch.expect(&["+paris b"]).await;
    // a link whose target is missing does not count as a removed file
    fs::remove_file(watch.path("elsewhere/paris.conf")).unwrap();
    watch.expect_state(|state| state.invalid.contains_key("paris")).await;
    fs::write(watch.path("elsewhere/paris.conf"), cluster_file("c")).unwrap();
    watch.expect(&["+paris c"]).await;
    watch.finish().await;
}

#[tokio::test]
async fn a_missing_directory_removes_nothing() {
    let mut watch = WatchedDirectory::start(|_| ());
    let state = watch.expect_state(|state| state.error.is_some()).await;
    assert_eq!(state.error.as_deref(), Some("No such file or directory"));
    put(&watch.path("config"), &[("paris", "endpoints: a"), ("tokyo", "endpoints: b")]);
    watch.expect(&["+paris a", "+tokyo b", "all paris tokyo"]).await;
    watch.expect_state(|state| state.readable).await;

    fs::rename(watch.path("config"), watch.path("config-old")).unwrap();
    watch.expect_state(|state| !state.readable).await;
    put(&watch.path("config"), &[("paris", "endpoints: a"), ("lyon", "endpoints: c")]);
    watch.expect(&["+lyon c", "-tokyo", "all lyon paris"]).await;
    // the new directory is the watched one now
    fs::write(watch.path("config/paris"), cluster_file("d")).unwrap();
    watch.expect(&["+paris d"]).await;
    watch.finish().await;
}

#[tokio::test]
async fn a_replaced_directory_is_watched_again() {
    let mut watch = WatchedDirectory::start(|root| {
        put(&root.join("config-a"), &[("paris", "endpoints: a")]);
        put(&root.join("config-b"), &[("paris", "endpoints: b")]);
        symlink("config-a", root.join("config")).unwrap();
    });
    watch.expect(&["+paris a", "all paris"]).await;
    symlink("config-b", watch.path("config-new")).unwrap();
    fs::rename(watch.path("config-new"), watch.path("config")).unwrap();
    watch.expect(&["+paris b"]).await;
    fs::write(watch.path("config-b/tokyo"), cluster_file("c")).unwrap();
    watch.expect(&["+tokyo c"]).await;
    watch.finish().await;
}

#[tokio::test]
async fn a_file_that_becomes_too_large_keeps_its_cluster() {
    let mut watch = WatchedDirectory::start(|root| put(&root.join("config"), &[("paris", "endpoints: a")]));
    watch.expect(&["+paris a", "all paris"]).await;
    fs::write(watch.path("config/paris"), cluster_file(&"x".repeat(1024 * 1024))).unwrap();
    let state = watch.expect_state(|state| !state.invalid.is_empty()).await;
    assert_eq!(state.invalid["paris"], "larger than 1048576 bytes, so it is not a client file");
    fs::write(watch.path("config/paris"), cluster_file("b")).unwrap();
    watch.expect(&["+paris b"]).await;
    watch.finish().await;
}

#[tokio::test]
async fn an_empty_directory_announces_an_empty_set() {
    let mut watch = WatchedDirectory::start(|root| fs::create_dir(root.join("config")).unwrap());
    watch.expect(&["all"]).await;
    watch.finish().await;
}

#[tokio::test]
async fn a_requested_rescan_finds_changes_that_metadata_does_not_show() {
    // the name of a thread is a writable file of a few bytes (proc_pid_comm(5)). Its metadata
    // changes only once the kernel has dropped its inode; only then would the check of the metadata
    // find the change
    let (sender, comm) = std::sync::mpsc::sync_channel(1);
    let (release, released) = std::sync::mpsc::sync_channel::<()>(1);
    let thread = std::thread::Builder::new().name("endpoints: a".into()).spawn(move || {
        sender.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
        let _ = released.recv();
    });
    let comm = Path::new("/proc").join(comm.recv().unwrap()).join("comm");
    let mut watch = WatchedDirectory::start(|root| {
        fs::create_dir(root.join("config")).unwrap();
        symlink(&comm, root.join("config/paris")).unwrap();
    });
    watch.expect(&["+paris a\n", "all paris"]).await;
    fs::write(&comm, "endpoints: b").unwrap();
    watch.rescan.notify_one();
    watch.expect(&["+paris b\n"]).await;
    watch.finish().await;
    drop(release);
    thread.unwrap().join().unwrap();
}
