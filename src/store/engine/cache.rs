//! Keeps sled's cache as small as it was told to be.
//!
//! sled 0.34.7 (`lru.rs`) has 256 shards of its cache. It looks at the size of one only after 64 reads of its pages, and even then keeps the last of
//! them, whatever its size. With values of 45 to 128 KB, most of them read or written once, that is not 4 MB but all that was read, or some 30 MB.
//!
//! *Sweeping* ends it: it reads pages that are next to empty, one in each shard, so often that sled looks at every shard and keeps just those.

use std::time::{Duration, Instant};

use super::super::error::EngineError;
use super::{PRIME_KEY, guarded};

/// The beginning of the names of the trees with those pages. They are numbered from 0 on and never hold anything.
const PREFIX: &str = "sweep-";

/// How many trees, made one after the other, have a page in every shard: there are 256 shards, to which pages go in turn, and a tree has two.
const TREE_COUNT: usize = 128;

/// sled looks at a shard after so many reads of its pages (docs/develop/measurements.md §1.3, trap 3), with the next one.
const READS_OF_SHARD: usize = 64;

/// How often to sweep while values are written. It takes some 10 ms, so a hundredth of one core.
const INTERVAL: Duration = Duration::from_secs(1);

/// What was given up in one epoch is dropped two epochs later; each flush may begin another.
const EPOCHS: usize = 3;

/// The pages to read, and when they were read last.
#[derive(Debug, Default)]
pub(super) struct Cache {
    trees: Vec<sled::Tree>,
    swept: Option<Instant>,
}

impl Cache {
    /// Sweeps if that is due. To be called between groups, where nobody waits for one to be durable.
    pub(super) fn tend(&mut self, map: &sled::Db, now: Instant) -> Result<(), EngineError> {
        match self.swept {
            Some(swept) if now < swept + INTERVAL => drop_garbage(),
            _ => self.sweep(map, now)?,
        }
        Ok(())
    }

    /// Makes sled let go of all pages but the last few. The first time in the life of a store writes the trees' names.
    pub(super) fn sweep(&mut self, map: &sled::Db, now: Instant) -> Result<(), EngineError> {
        for number in self.trees.len()..TREE_COUNT {
            self.trees.push(guarded(|| map.open_tree(format!("{PREFIX}{number}")))?);
        }
        guarded(|| {
            for tree in &self.trees {
                for _ in 0..=READS_OF_SHARD {
                    tree.get(PRIME_KEY)?;
                }
            }
            Ok(())
        })?;
        self.swept = Some(now);
        drop_garbage();
        Ok(())
    }
}

/// Has dropped what this thread gave up. Else it stays until the thread has given up 64 things (crossbeam-epoch 0.9, `internal.rs`), each of
/// which may be a page of 128 KB or a buffer for the log of 512 KB.
fn drop_garbage() {
    for _ in 0..EPOCHS {
        sled::pin().flush();
    }
}

/// Whether a tree is one of those that are only read.
pub(super) fn is_for_sweeping(tree_name: &[u8]) -> bool {
    tree_name.starts_with(PREFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::slots::{Slot, SlotKind, Slots as _, VALUE_BYTES_MAX};
    use super::super::{CACHE_BYTES_MAX, Engine};

    /// How much is allocated to read slots: our own copy of each value, and sled's where it does not hold the page.
    fn bytes_to_read(engine: &Engine, slots: &[Slot]) -> u64 {
        allocation_counter::measure(|| slots.iter().for_each(|slot| drop(engine.get(*slot).unwrap()))).bytes_total
    }

    #[test]
    fn what_was_read_is_let_go_of() {
        let directory = tempfile::tempdir().unwrap();
        let slots: Vec<Slot> = (0..256).map(|number| Slot { kind: SlotKind::Chunk, number }).collect();
        let engine = Engine::open(directory.path()).unwrap();
        slots.iter().for_each(|slot| engine.put(*slot, &vec![7; VALUE_BYTES_MAX]).unwrap());
        engine.sync().unwrap();
        drop(engine);

        let engine = Engine::open(directory.path()).unwrap();
        let all = slots.len() as u64 * VALUE_BYTES_MAX as u64;
        bytes_to_read(&engine, &slots);
        let again = bytes_to_read(&engine, &slots);
        assert!(again < all + all / 4, "all of it is held: {again} of {all}");
        engine.forget_pages().unwrap();
        let anew = bytes_to_read(&engine, &slots);
        assert!(anew > 2 * all - 2 * CACHE_BYTES_MAX, "hardly anything is held: {anew} of {all}");
    }
}
