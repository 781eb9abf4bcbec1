//! Keeps sled's page cache small.
//!
//! The cache of sled 0.34.7 (`lru.rs`) has 256 shards. sled checks the size of a shard only after
//! 64 reads of its pages, and even then keeps the last page, whatever its size. The values have 45
//! to 128 KB, and most are read or written once, so the cache grows to 30 MB or to everything that
//! was read, instead of 4 MB.
//!
//! A *sweep* reads almost empty pages, at least one in each shard, so often that sled checks every
//! shard and keeps only these pages.

use std::time::{Duration, Instant};

use super::super::error::EngineError;
use super::{PRIME_KEY, call_sled};

/// Prefix of the names of the trees whose pages a sweep reads. The trees are numbered from 0 and
/// always empty.
const PREFIX: &str = "sweep-";

/// Number of trees that together have a page in every shard. Pages are assigned to the 256 shards
/// in turn, and a tree has two pages.
const TREE_COUNT: usize = 128;

/// Number of reads of a shard's pages after which the next read checks its size
/// (docs/develop/measurements.md §1.3, trap 3).
const READS_PER_EVICTION: usize = 64;

/// Interval between sweeps while values are written. A sweep takes about 10 ms, so 1 % of one core.
const INTERVAL: Duration = Duration::from_secs(1);

/// Number of flushes after which garbage is freed. crossbeam frees it two of its own epochs after
/// its release, and each flush may begin such an epoch.
const EPOCHS_UNTIL_FREED: usize = 3;

/// Trees with the pages of a sweep.
#[derive(Debug, Default)]
pub(super) struct CacheSweeper {
    trees: Vec<sled::Tree>,
    last_sweep: Option<Instant>,
}

impl CacheSweeper {
    /// Sweeps if it is due. Call it between groups, when no group waits to become durable.
    pub(super) fn sweep_if_due(&mut self, db: &sled::Db, now: Instant) -> Result<(), EngineError> {
        match self.last_sweep {
            Some(last_sweep) if now < last_sweep + INTERVAL => collect_garbage(),
            _ => self.sweep(db, now)?,
        }
        Ok(())
    }

    /// Evicts all pages except the almost empty ones of the sweep. The first call for a store
    /// creates the trees.
    pub(super) fn sweep(&mut self, db: &sled::Db, now: Instant) -> Result<(), EngineError> {
        for number in self.trees.len()..TREE_COUNT {
            self.trees.push(call_sled(|| db.open_tree(format!("{PREFIX}{number}")))?);
        }
        call_sled(|| {
            for tree in &self.trees {
                for _ in 0..=READS_PER_EVICTION {
                    tree.get(PRIME_KEY)?;
                }
            }
            Ok(())
        })?;
        self.last_sweep = Some(now);
        collect_garbage();
        Ok(())
    }
}

/// Frees the memory that this thread has released. Otherwise it is kept until the thread has
/// released 64 objects (crossbeam-epoch 0.9, `internal.rs`), such as a page of 128 KB or a log
/// buffer of 512 KB.
fn collect_garbage() {
    for _ in 0..EPOCHS_UNTIL_FREED {
        sled::pin().flush();
    }
}

/// Returns whether a tree is used only for sweeps.
pub(super) fn is_sweep_tree(tree_name: &[u8]) -> bool {
    tree_name.starts_with(PREFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::slots::{Slot, SlotKind, SlotStorage as _, VALUE_BYTES_MAX};
    use super::super::{CACHE_BYTES_MAX, Engine};

    /// Returns the bytes allocated to read slots: a copy of each value, and sled's page if it is
    /// not cached.
    fn bytes_to_read(engine: &Engine, slots: &[Slot]) -> u64 {
        allocation_counter::measure(|| slots.iter().for_each(|slot| drop(engine.get(*slot).unwrap()))).bytes_total
    }

    #[test]
    fn pages_are_evicted_after_a_sweep() {
        let directory = tempfile::tempdir().unwrap();
        let slots: Vec<Slot> = (0..256).map(|number| Slot { kind: SlotKind::Chunk, number }).collect();
        let engine = Engine::open(directory.path()).unwrap();
        slots.iter().for_each(|slot| engine.put(*slot, &vec![7; VALUE_BYTES_MAX]).unwrap());
        engine.sync().unwrap();
        drop(engine);

        let engine = Engine::open(directory.path()).unwrap();
        let all = slots.len() as u64 * VALUE_BYTES_MAX as u64;
        bytes_to_read(&engine, &slots);
        let cached = bytes_to_read(&engine, &slots);
        assert!(cached < all + all / 4, "everything is cached: {cached} of {all}");
        engine.evict_pages().unwrap();
        let uncached = bytes_to_read(&engine, &slots);
        assert!(uncached > 2 * all - 2 * CACHE_BYTES_MAX, "almost nothing is cached: {uncached} of {all}");
    }
}
