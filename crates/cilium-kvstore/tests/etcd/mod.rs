// Starts an etcd server for each test and each example of the documentation, which include this
// file. ETCD_BIN names the program; the default is the `etcd` in the PATH.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// A running server. Dropping it stops the server and removes its data.
pub struct Etcd {
    server: Child,
    url: String,
    _data: tempfile::TempDir,
}

impl Etcd {
    /// Starts a server and waits until it accepts clients.
    pub fn start() -> Result<Self, Box<dyn Error>> {
        // both listeners stay open until both ports are known, so that the ports differ
        let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let [url, peers] = [format!("http://{}", listeners[0].local_addr()?), format!("http://{}", listeners[1].local_addr()?)];
        drop(listeners);
        let data = tempfile::tempdir()?;
        let program = std::env::var_os("ETCD_BIN").unwrap_or_else(|| "etcd".into());
        let mut server = Command::new(&program)
            .arg("--data-dir")
            .arg(data.path())
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("default={peers}")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}; set ETCD_BIN", program.display()))?;
        let log = server.stderr.take().ok_or("the server has no log")?;
        let etcd = Self { server, url, _data: data };
        let mut lines = BufReader::new(log).lines();
        while !lines.next().ok_or("etcd ended before it accepted clients")??.contains("ready to serve") {}
        // drain the log, so that the server does not block on a full pipe
        std::thread::spawn(move || lines.for_each(drop));
        Ok(etcd)
    }

    /// Returns the address for clients.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
