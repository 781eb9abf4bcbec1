//! The lock of the data directory: one living process at a time, and a name for the one that has it.
//!
//! Owns: the file `lock`, whose text names its holder. The kernel lets go of it when the holder ends, however that happens. Deliberately
//! lacks: the engine's own lock, which would not say who holds it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::foreign;
use crate::store::error::{StoreError, is_full};

/// The file's name inside the data directory.
const LOCK_FILE: &str = "lock";

/// How often to try while another process holds the lock: a restart notices within a twentieth of a second.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// As much of a command line as an error message can carry, in characters.
const COMMAND_LINE_LENGTH_MAX: usize = 400;

/// As much of the holder's text as is read, in bytes: the command line at 4 bytes a character, and the process id.
const HOLDER_LENGTH_MAX: u64 = 2048;

/// The data directory's lock, held until it is dropped.
#[derive(Debug)]
pub(in crate::store) struct DirectoryLock {
    pub(in crate::store) file: File,
}

impl Drop for DirectoryLock {
    /// Lets go at once. Closing the file alone would not: a child process that is just being started shares it until it runs its own program.
    fn drop(&mut self) {
        // where it fails, the kernel lets go when the last of those that share the file has closed it
        let _ = self.file.unlock();
    }
}

impl DirectoryLock {
    /// Creates the directory if needed and takes its lock, waiting up to `wait` for another process to let go of it.
    pub(in crate::store) fn take(directory: &Path, wait: Duration) -> Result<Self, StoreError> {
        let not_writable = |cause| StoreError::NotWritable { directory: directory.to_owned(), cause };
        fs::create_dir_all(directory).map_err(not_writable)?;
        let path = directory.join(LOCK_FILE);
        foreign::refuse(&path)?;
        let options = File::options().read(true).write(true).create(true).truncate(false).clone();
        let mut file = foreign::open_file(&path, &options).map_err(not_writable)?;
        let deadline = Instant::now() + wait;
        let mut told = wait.is_zero();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(not_writable(source)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    if !std::mem::replace(&mut told, true) {
                        let holder = read_holder(&mut file);
                        tracing::warn!(directory = %directory.display(), holder, wait_s = wait.as_secs(), "the data directory is in use by {holder}: waiting until that process ends");
                    }
                    std::thread::sleep(LOCK_POLL.min(deadline.saturating_duration_since(Instant::now())));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Locked { directory: directory.to_owned(), holder: read_holder(&mut file) });
                }
            }
        }
        match write_holder(&mut file) {
            // nobody learns who holds it, but it is held
            Err(error) if is_full(&error) => {}
            outcome => outcome.map_err(not_writable)?,
        }
        Ok(Self { file })
    }
}

fn write_holder(file: &mut File) -> io::Result<()> {
    let arguments: Vec<String> = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let command_line: String = arguments.join(" ").chars().take(COMMAND_LINE_LENGTH_MAX).collect();
    file.set_len(0)?;
    file.rewind()?;
    write!(file, "pid {}: {command_line}", std::process::id())
}

/// The text is from outside: bounded, and without control characters.
fn read_holder(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let outcome = file.rewind().and_then(|()| file.take(HOLDER_LENGTH_MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes).replace(char::is_control, " ");
    match outcome {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        Ok(_) | Err(_) => "an unknown process".to_owned(),
    }
}
