//! Programs for benches: an etcd and the sidecar, each in its own directory and ended on drop.

mod sized;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) use sized::sized;

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Maximum time of a start: a million keys in a store, on a machine with other load.
const START_TIME_MAX: Duration = Duration::from_secs(60);

/// Minimum pause between two requests of a poll.
const POLL_MIN: Duration = Duration::from_millis(1);

/// Returns a command that starts this program again, for a role of a bench.
pub(crate) fn child_of(bench: &str) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(bench);
    Ok(command)
}

/// A program that is ended on drop.
pub(crate) struct RunningProcess(Child);

impl Drop for RunningProcess {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl RunningProcess {
    /// Sends SIGTERM, as Kubernetes does, and waits for the end of the program.
    pub(crate) fn terminate(mut self) -> Outcome<()> {
        Command::new("kill").arg(self.0.id().to_string()).status()?;
        self.0.wait()?;
        Ok(())
    }

    /// Returns the resident memory in MB.
    pub(crate) fn resident_mb(&self) -> Outcome<u64> {
        let line = self.field("status", "VmRSS:")?;
        Ok(line.trim_end_matches(" kB").parse::<u64>()? * 1_024 / 1_000_000)
    }

    /// Returns the bytes that the program made the kernel write to the disk.
    pub(crate) fn written_bytes(&self) -> Outcome<u64> {
        Ok(self.field("io", "write_bytes:")?.parse()?)
    }

    /// Returns the CPU time of the program.
    pub(crate) fn busy(&self) -> Outcome<Duration> {
        busy_of(self.0.id())
    }

    fn field(&self, file: &str, name: &str) -> Outcome<String> {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.0.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no {name}"))?;
        Ok(line.trim().to_owned())
    }
}

/// Returns the CPU time of a process.
pub(crate) fn busy_of(id: u32) -> Outcome<Duration> {
    let text = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // proc(5): utime and stime are fields 14 and 15, in hundredths of a second; field 2 can contain
    // spaces
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let [user, system] = fields.get(11..13).ok_or("no times")? else { return Err("no times".into()) };
    Ok(Duration::from_millis((user.parse::<u64>()? + system.parse::<u64>()?) * 10))
}

fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts the etcd of `ETCD_BIN`, or `etcd` from the path, below `home`. Returns it, its URL and a
/// client.
pub(crate) async fn start_etcd(home: &Path) -> Outcome<(RunningProcess, String, Client)> {
    start_etcd_of(&etcd_binary(), home).await
}

/// Returns the etcd that `ETCD_BIN` names, or `etcd` from the path.
pub(crate) fn etcd_binary() -> String {
    std::env::var("ETCD_BIN").unwrap_or_else(|_| "etcd".to_owned())
}

/// Ports of an etcd, for clients and for peers.
pub(crate) struct Ports(u16, u16);

impl Ports {
    pub(crate) fn free() -> Outcome<Self> {
        Ok(Self(free_port()?, free_port()?))
    }
}

/// Starts an etcd with the data below `home`. Returns it and its URL without waiting for it.
pub(crate) fn spawn_etcd(binary: &str, home: &Path, ports: &Ports) -> Outcome<(RunningProcess, String)> {
    let (url, peer) = (format!("http://127.0.0.1:{}", ports.0), format!("http://127.0.0.1:{}", ports.1));
    let mut command = Command::new(binary);
    command.args(["--name=bench", "--quota-backend-bytes=8000000000", "--log-level=error"]);
    command.arg(format!("--data-dir={}", home.join("etcd").display()));
    command.args([format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")]);
    command.args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
    command.arg(format!("--initial-cluster=bench={peer}"));
    Ok((RunningProcess(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?), url))
}

/// Starts an etcd below `home`. Returns it, its URL and a client.
pub(crate) async fn start_etcd_of(binary: &str, home: &Path) -> Outcome<(RunningProcess, String, Client)> {
    start_etcd_at(binary, home, &Ports::free()?).await
}

/// Starts an etcd below `home` at these ports. Returns it, its URL and a client.
pub(crate) async fn start_etcd_at(binary: &str, home: &Path, ports: &Ports) -> Outcome<(RunningProcess, String, Client)> {
    let (running, url) = spawn_etcd(binary, home, ports)?;
    let deadline = Instant::now() + START_TIME_MAX;
    loop {
        if let Ok(mut client) = Client::connect([&url], None).await
            && client.status().await.is_ok()
        {
            return Ok((running, url, client));
        }
        if Instant::now() > deadline {
            return Err("etcd does not start".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Writes the client file of a cluster.
pub(crate) fn add_cluster(home: &Path, name: &str, etcd: &str) -> Outcome<()> {
    let clusters = home.join("clustermesh");
    fs::create_dir_all(&clusters)?;
    Ok(fs::write(clusters.join(name), format!("endpoints:\n- {etcd}\n"))?)
}

/// Starts the sidecar with its files below `home`. Returns it and its address.
pub(crate) fn start_meshkeep(home: &Path) -> Outcome<(RunningProcess, String)> {
    start_meshkeep_command(home, &["serve"])
}

/// Starts a meshkeep command that mirrors, with its files below `home`. Returns it and its address.
pub(crate) fn start_meshkeep_command(home: &Path, words: &[&str]) -> Outcome<(RunningProcess, String)> {
    let (running, address, _) = start_meshkeep_with(home, words)?;
    Ok((running, address))
}

/// Starts a meshkeep command that mirrors, with these words and with its files below `home`.
/// Returns it, its address, and the URL of its etcd API if it has one.
pub(crate) fn start_meshkeep_with(home: &Path, words: &[&str]) -> Outcome<(RunningProcess, String, Option<String>)> {
    start_program(Path::new(env!("CARGO_BIN_EXE_meshkeep")), home, words)
}

/// Starts another meshkeep's sidecar with its files below `home`. Returns it and its address.
pub(crate) fn start_meshkeep_program(program: &Path, home: &Path) -> Outcome<(RunningProcess, String)> {
    let (running, address, _) = start_program(program, home, &["serve"])?;
    Ok((running, address))
}

fn start_program(program: &Path, home: &Path, words: &[&str]) -> Outcome<(RunningProcess, String, Option<String>)> {
    let (output, log) = (home.join("meshkeep.out"), home.join("meshkeep.log"));
    let mut command = Command::new(program);
    command.args(words).arg("--clustermesh-config").arg(home.join("clustermesh")).arg("--data-dir").arg(home.join("data"));
    command.args(["--listen", "127.0.0.1:0"]).stdout(fs::File::create(&output)?).stderr(fs::File::create(&log)?);
    let running = RunningProcess(command.spawn()?);
    let deadline = Instant::now() + START_TIME_MAX;
    loop {
        let output_text = fs::read_to_string(&output)?;
        let mut lines = output_text.lines().filter_map(|line| line.strip_prefix("listening on "));
        let etcd_url = lines.clone().find_map(|line| line.strip_suffix(" as an etcd"));
        let address = lines.find_map(|line| line.strip_prefix("http://").filter(|rest| !rest.contains(' ')));
        // the lines with the addresses may not be complete yet
        if let Some(address) = address.filter(|_| etcd_url.is_some() == words.contains(&"--etcd-listen")) {
            return Ok((running, address.to_owned(), etcd_url.map(str::to_owned)));
        }
        if Instant::now() > deadline {
            return Err(format!("meshkeep does not start: {}", fs::read_to_string(&log)?).into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a request to the sidecar and returns the whole answer with its head.
pub(crate) async fn ask(address: &str, path: &str) -> Outcome<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Polls until an answer contains a text. The pauses grow with the elapsed time, so that the
/// measured time is accurate to a hundredth and the polls need little CPU.
pub(crate) async fn until(address: &str, path: &str, wanted: &str, time_max: Duration) -> Outcome<()> {
    let began = Instant::now();
    loop {
        let answer = ask(address, path).await?;
        if answer.contains(wanted) {
            return Ok(());
        }
        if began.elapsed() > time_max {
            return Err(format!("{path} never contained {wanted:?}; the last answer:\n{answer}").into());
        }
        tokio::time::sleep((began.elapsed() / 100).max(POLL_MIN)).await;
    }
}
