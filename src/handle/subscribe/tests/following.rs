//! A follower near the head, behind the ring, and behind the tombstones.

use super::*;
use crate::feed::RING_LENGTH_MAX;
use crate::handle::Expired;

/// Keys of the newest changes with their sequences, and the position after them.
fn newest(follower: Follower, reading: &Reading, count: usize) -> (Vec<(u64, EntryKey)>, u64) {
    let NewestChanges { changes, up_to } = follower.newest_changes(reading, count).unwrap();
    (changes.into_iter().map(|(sequence, changed)| (sequence.0, changed.into_key())).collect(), up_to.0)
}

#[test]
fn a_follower_that_falls_behind_gets_newest_changes_then_expires() {
    let mut mirror = ChangingMirror::new(1);
    let follower = Follower::at(mirror.reading().position().sequence);
    mirror.put(0, 1, "a");
    mirror.put(0, 1, "b");
    mirror.put(0, 2, "a");
    let reading = mirror.reading();
    let each: Vec<u64> = follower.each_change(&reading).unwrap().map(|announcement| announcement.sequence.0).collect();
    assert_eq!(each, [1_001, 1_002, 1_003]);
    assert_eq!(newest(follower, &reading, 0), (vec![], 1_000));
    assert_eq!(newest(follower, &reading, 1), (vec![(1_002, key(0, 1))], 1_002));
    let both = vec![(1_002, key(0, 1)), (1_003, key(0, 2))];
    assert_eq!([2, 3].map(|count| newest(follower, &reading, count)), [2, 3].map(|_| (both.clone(), 1_003)));
    assert!(!follower.is_current(&reading) && Follower::at(Sequence(1_003)).is_current(&reading));

    for number in 0..RING_LENGTH_MAX {
        mirror.put(0, 3, ["a", "b"][number % 2]);
    }
    let reading = mirror.reading();
    assert!(follower.each_change(&reading).is_none());
    let head = reading.position().sequence.0;
    assert_eq!(newest(follower, &reading, 10), ([both, vec![(head, key(0, 3))]].concat(), head));

    mirror.delete(0, 1);
    assert_eq!(follower.check(&mirror.reading()), Ok(()));
    mirror.delete(0, 2);
    let reading = mirror.reading();
    assert_eq!(follower.newest_changes(&reading, 1).err(), Some(Expired { lowest: Sequence(head + 1) }));
    assert_eq!(Follower::at(Sequence(head + 1)).check(&reading), Ok(()));
}
