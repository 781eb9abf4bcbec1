//! `meshkeep kvstore get|list|set|delete|watch|lock`: reads and writes any etcd by its client file,
//! as cilium-dbg does.

use std::io;
use std::process::{Child, Command};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::target::{TargetOptions, failure};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{print, print_json};
use crate::config::parse_duration;
use cilium_kvstore::{EventKind, KeyLifetime, KeyValue, Session};

/// Capacity of the queue of events to print: one page of a list.
const EVENTS_MAX: usize = 256;

/// Interval between checks whether the command under a lock has ended: too short to be noticed.
const COMMAND_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum KvstoreCommand {
    /// Read a key, or all keys with a prefix
    Get(KvstoreGetOptions),
    /// Read all keys with a prefix
    List(KvstoreListOptions),
    /// Write a key, without a lease
    Set(KvstoreSetOptions),
    /// Delete a key, or all keys with a prefix
    Delete(KvstoreDeleteOptions),
    /// Read all keys with a prefix, then follow their changes, one line each
    Watch(KvstoreWatchOptions),
    /// Hold a lock until standard input ends, or while a command runs
    Lock(KvstoreLockOptions),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KvstoreFormat {
    /// `key => value`
    Text,
    /// JSON, with binary values in base64
    Json,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct KvstoreGetOptions {
    /// The key
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    key: String,
    /// Read all keys with this prefix
    #[arg(long)]
    recursive: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: KvstoreFormat,
    #[command(flatten)]
    target: TargetOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct KvstoreListOptions {
    /// Prefix of the keys
    #[arg(default_value = "")]
    prefix: String,
    /// Print only the keys
    #[arg(long)]
    keys_only: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: KvstoreFormat,
    #[command(flatten)]
    target: TargetOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct KvstoreSetOptions {
    /// The key
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: String,
    /// Its value
    #[arg(long)]
    value: String,
    /// Only create the key; fail if it exists
    #[arg(long)]
    create_only: bool,
    #[command(flatten)]
    target: TargetOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct KvstoreDeleteOptions {
    /// The key
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    key: String,
    /// Delete all keys with this prefix
    #[arg(long)]
    recursive: bool,
    #[command(flatten)]
    target: TargetOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct KvstoreWatchOptions {
    /// Prefix of the keys
    #[arg(default_value = "")]
    prefix: String,
    #[command(flatten)]
    target: TargetOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct KvstoreLockOptions {
    /// The path
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    path: String,
    /// Maximum time to wait for the lock
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
    /// Command to run while the lock is held; meshkeep exits when it ends, and fails if the lock is
    /// lost before
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    target: TargetOptions,
}

pub(in crate::cli) async fn run(command: &KvstoreCommand) -> Result<ExitStatus, Failure> {
    match command {
        KvstoreCommand::Get(options) => get(options).await,
        KvstoreCommand::List(options) => {
            let session = options.target.connect(false).await?;
            list(&session, &options.prefix, options.output, options.keys_only).await
        }
        KvstoreCommand::Set(options) => set(options).await,
        KvstoreCommand::Delete(options) => delete(options).await,
        KvstoreCommand::Watch(options) => watch(options).await,
        KvstoreCommand::Lock(options) => lock(options).await,
    }
}

async fn get(options: &KvstoreGetOptions) -> Result<ExitStatus, Failure> {
    let session = options.target.connect(false).await?;
    if options.recursive {
        return list(&session, &options.key, options.output, false).await;
    }
    let pair = session.get(options.key.as_bytes()).await.map_err(|error| failure(&error))?;
    let pair = pair.ok_or_else(|| Failure::new(format!("there is no key {}", options.key)))?;
    match options.output {
        KvstoreFormat::Text => print(&line(&pair))?,
        KvstoreFormat::Json => print_json(&key_value_json(&pair))?,
    }
    Ok(ExitStatus::Success)
}

async fn list(session: &Session, prefix: &str, format: KvstoreFormat, keys_only: bool) -> Result<ExitStatus, Failure> {
    let pairs = session.list_prefix(prefix.as_bytes()).await.map_err(|error| failure(&error))?;
    match format {
        KvstoreFormat::Text if keys_only => print(&pairs.iter().map(|pair| text(&pair.key) + "\n").collect::<String>())?,
        KvstoreFormat::Text => print(&pairs.iter().map(line).collect::<String>())?,
        KvstoreFormat::Json if keys_only => print_json(&json!(pairs.iter().map(|pair| text(&pair.key)).collect::<Vec<_>>()))?,
        KvstoreFormat::Json => print_json(&Value::Array(pairs.iter().map(key_value_json).collect()))?,
    }
    Ok(ExitStatus::Success)
}

async fn set(options: &KvstoreSetOptions) -> Result<ExitStatus, Failure> {
    let session = options.target.connect(false).await?;
    let (key, value) = (options.key.as_bytes(), options.value.as_bytes());
    if !options.create_only {
        session.update(key, value, KeyLifetime::Permanent).await.map_err(|error| failure(&error))?;
    } else if !session.create_only(key, value, KeyLifetime::Permanent).await.map_err(|error| failure(&error))? {
        return Err(Failure::new(format!("key {} already exists", options.key)));
    }
    Ok(ExitStatus::Success)
}

async fn delete(options: &KvstoreDeleteOptions) -> Result<ExitStatus, Failure> {
    let session = options.target.connect(false).await?;
    let key = options.key.as_bytes();
    let count = if options.recursive { session.delete_prefix(key).await } else { session.delete(key).await.map(u64::from) };
    print(&format!("{} deleted\n", count.map_err(|error| failure(&error))?))?;
    Ok(ExitStatus::Success)
}

async fn watch(options: &KvstoreWatchOptions) -> Result<ExitStatus, Failure> {
    let session = options.target.connect(false).await?;
    let mut watcher = session.list_and_watch(options.prefix.as_bytes(), EVENTS_MAX);
    while let Some(event) = watcher.next().await {
        let (key, value) = (text(&event.key), text(&event.value));
        print(&match event.kind {
            EventKind::Create => format!("create {key} => {value}\n"),
            EventKind::Modify => format!("modify {key} => {value}\n"),
            EventKind::Delete => format!("delete {key}\n"),
            EventKind::ListDone => "listed\n".to_owned(),
            EventKind::Relisting | EventKind::Relisted => continue,
        })?;
    }
    Ok(ExitStatus::Success)
}

async fn lock(options: &KvstoreLockOptions) -> Result<ExitStatus, Failure> {
    // from here on a signal also ends the command under the lock, which must not run without the
    // lock
    let mut signals = StopSignals::new().map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    let session = tokio::select! {
        session = options.target.connect(true) => session?,
        () = signals.received() => return Ok(ExitStatus::Failed),
    };
    let result = hold_lock(options, &session, &mut signals).await;
    // also revokes the leases: otherwise the key of a process that gave up waiting would block the
    // processes behind it
    session.close().await;
    result
}

async fn hold_lock(options: &KvstoreLockOptions, session: &Session, signals: &mut StopSignals) -> Result<ExitStatus, Failure> {
    let attempt = tokio::select! {
        attempt = tokio::time::timeout(options.timeout, session.lock_path_without_limit(options.path.as_bytes())) => attempt,
        () = signals.received() => return Ok(ExitStatus::Failed),
    };
    let attempt = attempt.map_err(|_| Failure::new(format!("another process has the lock {}", options.path)))?;
    let lock = attempt.map_err(|error| failure(&error))?;
    print(&format!("{}\n", text(&lock.comparator().key)))?;
    let result = tokio::select! {
        result = run_or_wait(&options.command) => result,
        () = lock.lost() => return Err(Failure::new(format!("the lock on {} was lost", options.path))),
        // an interrupted command did not succeed
        () = signals.received() => Ok(ExitStatus::from_success(options.command.is_empty())),
    };
    lock.unlock().await.map_err(|error| failure(&error))?;
    result
}

/// Signals that end the command: SIGINT, SIGTERM and SIGHUP.
struct StopSignals([Signal; 3]);

impl StopSignals {
    fn new() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]))
    }

    async fn received(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Runs the command or, without a command, waits for the end of standard input. The lock is no
/// longer needed afterwards.
async fn run_or_wait(command: &[String]) -> Result<ExitStatus, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return wait_for_end_of_input().await;
    };
    let run_failure = |error: io::Error| Failure::usage(format!("cannot run {program}: {error}"));
    let mut running = ChildGuard(Command::new(program).args(arguments).spawn().map_err(run_failure)?);
    loop {
        if let Some(status) = running.0.try_wait().map_err(run_failure)? {
            return Ok(ExitStatus::from_success(status.success()));
        }
        tokio::time::sleep(COMMAND_INTERVAL).await;
    }
}

/// Waits for the end of standard input, on a thread that does not keep the process alive.
async fn wait_for_end_of_input() -> Result<ExitStatus, Failure> {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = ended.send(());
    });
    end.await.map(|()| ExitStatus::Success).map_err(|_| Failure::new("cannot read standard input"))
}

/// A child process that is killed on drop: it must not run without the lock.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // fails only if the child has already ended
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns `key => value`, as cilium-dbg prints it.
fn line(pair: &KeyValue) -> String {
    format!("{} => {}\n", text(&pair.key), text(&pair.value))
}

/// Returns a key with its value and all metadata from etcd, as JSON.
fn key_value_json(pair: &KeyValue) -> Value {
    let mut object = Map::new();
    object.insert("key".into(), text(&pair.key).into());
    match str::from_utf8(&pair.value) {
        Ok(value) => object.insert("value".into(), value.into()),
        Err(_) => object.insert("valueBase64".into(), STANDARD.encode(&pair.value).into()),
    };
    object.insert("createRevision".into(), pair.create_revision.0.into());
    object.insert("modRevision".into(), pair.mod_revision.0.into());
    object.insert("version".into(), pair.version.into());
    if pair.lease.0 != 0 {
        object.insert("lease".into(), format!("{:x}", pair.lease.0).into());
    }
    Value::Object(object)
}
