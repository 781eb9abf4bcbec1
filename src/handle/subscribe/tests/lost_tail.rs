//! Subscribers of a store that is replaced by an older copy. Wherever a subscriber had
//! disconnected, its copy must be correct once it is current.

use super::*;
use crate::model::{EpochSpan, Tombstone};

/// Content of a restored copy of the data directory, with the state of the source at that time.
struct DataDirectoryCopy {
    published: MirrorSnapshot,
}

impl ChangingMirror {
    fn copy(&self) -> DataDirectoryCopy {
        DataDirectoryCopy { published: self.published.clone() }
    }

    /// Continues from a copy as a start does, with the same records, tombstones and floor. The
    /// positions of the copy's run are valid up to its end. The epoch is new and the sequences are
    /// unused.
    fn start_from(&mut self, copy: DataDirectoryCopy, epoch: u64) {
        let (old, head) = (copy.published, Sequence(self.published.feed.head().0 + 1_000));
        let mut view = View::starting_at(head);
        let mut feed = Feed::starting_at(head, Retention { age_max: Duration::from_secs(3600), count_max: 1_000 });
        for record in old.view.records_from(&EntryKey::lowest()) {
            view.restore(Record { generation: 0, ..(*record).clone() });
        }
        for (sequence, changed) in old.changes_after(Sequence(0), usize::MAX) {
            if let LatestChange::Deleted(key, reason) = changed {
                feed.restore_tombstone(sequence, Tombstone { key, reason, time: SystemTime::UNIX_EPOCH });
            }
        }
        feed.restore_floor(old.feed.floor());
        let earlier = old.earlier_runs.iter().copied();
        let own = EpochSpan { epoch: old.epoch, start: Sequence(0), accepted_up_to: Some(old.feed.head()) };
        self.published = MirrorSnapshot { view, feed, epoch: Epoch(epoch), earlier_runs: earlier.chain([own]).collect() };
    }
}

/// Reads a piece, loses its end as in a broken connection, and reconnects.
fn read_part_and_reconnect(reader: &mut TestSubscriber, reading: &Reading, random: &mut StdRng) {
    let items = reader.subscription.next_up_to(reading, random.random_range(1..8));
    let received = random.random_range(0..=items.len());
    for item in items.into_iter().take(received) {
        reader.apply(item);
    }
    reader.reconnect(reading);
}

#[test]
fn an_interrupted_copy_becomes_equal_to_a_restored_mirror() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut mirror = ChangingMirror::new(1_000);
        let mut readers: Vec<TestSubscriber> = filters().into_iter().map(|filter| TestSubscriber::new(filter, &mirror.reading())).collect();
        for epoch in 8..12 {
            let mut copy = None;
            for round in 0..12 {
                for _ in 0..random.random_range(0..12) {
                    // few keys, so that most change several times
                    let (cluster_index, id) = (random.random_range(0..2), random.random_range(1..5));
                    match random.random_range(0..5) {
                        4 => mirror.set_finding(id as usize % 3, random.random_range(0..3)),
                        0 => mirror.delete(cluster_index, id),
                        _ => mirror.put(cluster_index, id, ["a", "b", "c"][random.random_range(0..3)]),
                    }
                }
                if round == 7 {
                    copy = Some(mirror.copy());
                }
                let reading = mirror.reading();
                for reader in &mut readers {
                    match random.random_range(0..4) {
                        0 => {}
                        1 => reader.catch_up(&reading),
                        _ => read_part_and_reconnect(reader, &reading, &mut random),
                    }
                }
            }
            mirror.start_from(copy.expect("must have been made"), epoch);
            let reading = mirror.reading();
            for reader in &mut readers {
                reader.reconnect(&reading);
                reader.catch_up(&reading);
                assert_eq!(reader.copy, mirror.mirrored_objects(&reader.filter), "seed {seed}, epoch {epoch}, filter {:?}", reader.filter);
            }
        }
    }
}
