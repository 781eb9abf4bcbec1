//! The lock of the data directory: one process at a time.
//!
//! The file `lock` contains the process id and command line of the holder. The kernel releases the
//! lock when the process ends. sled's own lock would not name the holder.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::foreign;
use crate::store::error::{StoreError, is_full};

/// Name of the lock file in the data directory.
const LOCK_FILE: &str = "lock";

/// Interval between attempts while another process holds the lock.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Maximum length of the command line in the lock file, in characters.
const COMMAND_LINE_LENGTH_MAX: usize = 400;

/// Maximum number of bytes read from the lock file: the command line at 4 bytes per character, and
/// the process id.
const HOLDER_LENGTH_MAX: u64 = 2048;

/// The lock of a data directory. Released on drop.
#[derive(Debug)]
pub(in crate::store) struct DirectoryLock {
    pub(in crate::store) file: File,
}

impl Drop for DirectoryLock {
    /// Unlocks explicitly. Closing the file would not be enough: a child process that is just being
    /// started shares it until it runs its own program.
    fn drop(&mut self) {
        // if this fails, the kernel releases the lock when the last process has closed the file
        let _ = self.file.unlock();
    }
}

impl DirectoryLock {
    /// Creates the directory if needed and locks it. Waits up to `wait` for another process to
    /// release it.
    pub(in crate::store) fn acquire(directory: &Path, wait: Duration) -> Result<Self, StoreError> {
        let not_writable = |cause| StoreError::NotWritable { directory: directory.to_owned(), cause };
        fs::create_dir_all(directory).map_err(not_writable)?;
        let path = directory.join(LOCK_FILE);
        foreign::refuse_foreign_file(&path)?;
        let options = File::options().read(true).write(true).create(true).truncate(false).clone();
        let mut file = foreign::open_file(&path, &options).map_err(not_writable)?;
        let deadline = Instant::now() + wait;
        let mut is_logged = wait.is_zero();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(not_writable(source)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    if !std::mem::replace(&mut is_logged, true) {
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
            // on a full disk the lock is held, but its file does not name the holder
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

/// Reads the holder from the lock file. The text may come from any program, so its length is
/// limited and control characters are replaced.
fn read_holder(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let outcome = file.rewind().and_then(|()| file.take(HOLDER_LENGTH_MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes).replace(char::is_control, " ");
    match outcome {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        Ok(_) | Err(_) => "an unknown process".to_owned(),
    }
}
