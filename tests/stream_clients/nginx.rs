//! Debian's nginx with Debian's settings, as a reverse proxy on its own loopback port.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::net::TcpStream;

use super::client::{install_tools, kill_process_group, source};
use crate::harness::PATIENCE;
use crate::harness::etcd::unused_port;

/// Settings of the package.
const PACKAGE_SETTINGS: &str = "/etc/nginx/nginx.conf";

/// Maximum number of attempts to start on a new port. An attempt fails if another program takes the
/// port before nginx binds it.
const START_ATTEMPTS_MAX: usize = 5;

/// A running nginx, killed with its workers when it is dropped.
pub(super) struct Nginx {
    child: Child,
    directory: TempDir,
    port: u16,
}

impl Nginx {
    /// Starts nginx as a reverse proxy of a local port: `/v1/` has a `proxy_pass` and no other
    /// setting. It also serves the test page.
    pub(super) async fn in_front_of(upstream: u16) -> Self {
        install_tools();
        for _ in 0..START_ATTEMPTS_MAX {
            let port = unused_port();
            let directory = tempfile::Builder::new().prefix("meshkeep-nginx-").tempdir().unwrap();
            let settings = write_settings(directory.path(), port, upstream);
            let mut command = Command::new("nginx");
            command.arg("-c").arg(settings).arg("-e").arg(directory.path().join("error.log")).args(["-g", "daemon off;"]);
            // Debian installs nginx in a directory that is not always in the path
            command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
            let child = command.spawn().unwrap_or_else(|e| panic!("nginx (see scripts/stream-clients-setup): {e}"));
            let mut nginx = Self { child, directory, port };
            if nginx.wait_until_listening().await {
                return nginx;
            }
            eprintln!("nginx did not start: {}", nginx.errors());
        }
        panic!("nginx did not start in {START_ATTEMPTS_MAX} attempts");
    }

    /// Returns the port for clients.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.directory.path().join("error.log")).unwrap_or_default()
    }

    /// Waits until nginx accepts connections. Returns false if it ended instead.
    async fn wait_until_listening(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            if TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                return true;
            }
            assert!(Instant::now() < deadline, "nginx does not listen: {}", self.errors());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        kill_process_group(&mut self.child);
        if std::thread::panicking() {
            eprintln!("errors of nginx:\n{}", self.errors());
        }
    }
}

/// Writes the package's settings with other paths, and our site instead of the enabled ones.
fn write_settings(directory: &Path, port: u16, upstream: u16) -> PathBuf {
    // the workers do not run as root
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| directory.join(name).display().to_string();
    let package = fs::read_to_string(PACKAGE_SETTINGS).unwrap();
    let lines = package.lines().filter_map(|line| match line.split_whitespace().next() {
        Some("pid") => Some(format!("pid {};", path("nginx.pid"))),
        Some("error_log") => Some(format!("error_log {};", path("error.log"))),
        Some("access_log") => Some(format!("access_log {};", path("access.log"))),
        Some("include") if line.contains("sites-enabled") => Some(format!("include {};", path("site.conf"))),
        Some("include") if !line.contains("mime.types") => None,
        _ => Some(line.to_owned()),
    });
    let settings = directory.join("nginx.conf");
    fs::write(&settings, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let buffers = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let buffers: String = buffers.iter().map(|name| format!("{name}_temp_path {};\n", path(name))).collect();
    let pages = directory.join("pages");
    fs::create_dir(&pages).unwrap();
    for name in ["page.html", "follow.js"] {
        fs::copy(source("eventsource").join(name), pages.join(name)).unwrap();
    }
    let site = format!(
        "{buffers}server {{\n  listen 127.0.0.1:{port};\n  root {};\n  location /v1/ {{ proxy_pass http://127.0.0.1:{upstream}; }}\n}}\n",
        pages.display()
    );
    fs::write(directory.join("site.conf"), site).unwrap();
    settings
}
