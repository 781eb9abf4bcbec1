//! From layout 1 to layout 2 (`migrations/0002-packed`): a new store is written beside the old one, synced, and put in its place.
//!
//! Owns: the names of the directories meanwhile, and what a broken-off upgrade is continued from. The atomic step is one rename, from
//! `store-upgrading` to `store-upgraded`: before it the old store counts and the upgrade begins anew, after it the new one does. Deliberately
//! lacks: layouts other than 1, and damage to the old engine's files (`recovery` sets them aside).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bytes::{Malformed, unseal};
use super::change::{Key, Value};
use super::codec::{self, StoredKey};
use super::engine::Engine;
use super::error::EngineError;
use super::recovery::{begin, sync_directory, write_format_file};
use super::warm::Warm;
use super::witness::Witness;
use super::{ENGINE_DIRECTORY, load};

/// The number of the layout that is upgraded.
pub(super) const OLD_FORMAT: u64 = 1;

/// The new store while it is written.
const UPGRADING: &str = "store-upgrading";

/// The new store once it is whole.
const UPGRADED: &str = "store-upgraded";

/// The old store once the new one counts.
const REPLACED: &str = "store-replaced";

/// How many keys go into one group: some 6 MB, so that memory stays small.
const GROUP_KEYS: usize = 20_000;

/// No deadline: the upgrade is finished before anything else begins.
const SETTLE_MAX: Duration = Duration::from_secs(3600);

/// Writes the store anew in the present layout. The old one, in the data directory, is whole until the new one is.
pub(super) fn migrate(data_directory: &Path) -> Result<(), EngineError> {
    tracing::info!("upgrading the store from layout {OLD_FORMAT}");
    let new = data_directory.join(UPGRADING);
    remove(&new)?;
    fs::create_dir(&new)?;
    write_new(&data_directory.join(ENGINE_DIRECTORY), &new)?;
    sync_files(&new)?;
    fs::rename(&new, data_directory.join(UPGRADED))?;
    sync_directory(data_directory)?;
    finish(data_directory)?;
    Ok(())
}

/// Ends an upgrade that was broken off after its atomic step, and removes what one before it left.
pub(super) fn finish(data_directory: &Path) -> io::Result<()> {
    let (store, upgraded) = (data_directory.join(ENGINE_DIRECTORY), data_directory.join(UPGRADED));
    if upgraded.exists() {
        if store.exists() {
            remove(&data_directory.join(REPLACED))?;
            fs::rename(&store, data_directory.join(REPLACED))?;
        }
        fs::rename(&upgraded, &store)?;
        sync_directory(data_directory)?;
    }
    remove(&data_directory.join(REPLACED))?;
    remove(&data_directory.join(UPGRADING))
}

fn write_new(old: &Path, new: &Path) -> Result<(), EngineError> {
    let testimony = Witness::open(old, true)?.testimony();
    let mut upgrade = Upgrade { warm: begin(Engine::open(new)?)?, group: BTreeMap::new(), group_number: 0, damaged: false, failed: None };
    Engine::open(old)?.scan_plain(|key, value| upgrade.take(key, value))?;
    if let Some(error) = upgrade.failed {
        return Err(error);
    }
    let Upgrade { mut warm, group, group_number, damaged, .. } = upgrade;
    warm.commit(group)?;
    warm.settle(Instant::now() + SETTLE_MAX)?;
    let loaded = load::read(&warm, BTreeMap::new())?.loaded;
    let mut witness = Witness::open(new, true)?;
    witness.confirm(warm.group_number, loaded.sequence_reserved.max(testimony.sequence))?;
    if damaged || testimony.suspect || group_number < testimony.group_number {
        // costs every cursor, when it is opened
        witness.suspect()?;
    }
    write_format_file(new)?;
    Ok(())
}

/// The new store while it is filled.
struct Upgrade {
    warm: Warm<Arc<Engine>>,
    group: BTreeMap<Key, Option<Value>>,
    group_number: u64,
    /// Whether something could not be read.
    damaged: bool,
    failed: Option<EngineError>,
}

impl Upgrade {
    fn take(&mut self, key: &[u8], stored: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.read(key, stored) {
            tracing::warn!(key = %key.escape_ascii(), %error, "dropped a stored value that cannot be read");
            self.damaged = true;
        }
        if self.group.len() >= GROUP_KEYS {
            let group = std::mem::take(&mut self.group);
            self.failed = self.warm.commit(group).and_then(|()| self.warm.tend(Instant::now(), Instant::now() + SETTLE_MAX)).err();
        }
    }

    fn read(&mut self, key: &[u8], stored: &[u8]) -> Result<(), Malformed> {
        let body = unseal(key, stored)?;
        let value = match codec::read_key(key).ok_or(Malformed::Field("key"))? {
            StoredKey::Format => return Ok(()),
            StoredKey::Group => {
                self.group_number = codec::read_number(body)?;
                return Ok(());
            }
            StoredKey::Entry(entry) => Value::Record(codec::read_record(entry, body)?.into()),
            StoredKey::Cursor(_)
            | StoredKey::Cluster(_)
            | StoredKey::Sequence
            | StoredKey::Tombstone(_)
            | StoredKey::Epochs
            | StoredKey::Floor
            | StoredKey::Covered
            | StoredKey::Derived => Value::Item(body.into()),
        };
        self.group.insert(key.into(), Some(value));
        Ok(())
    }
}

/// Makes everything in a directory outlive a power cut.
fn sync_files(directory: &Path) -> io::Result<()> {
    for file in fs::read_dir(directory)? {
        let path = file?.path();
        if path.is_dir() { sync_files(&path)? } else { File::open(&path)?.sync_all()? }
    }
    sync_directory(directory)
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Err(_) | Ok(()) => Ok(()),
    }
}
