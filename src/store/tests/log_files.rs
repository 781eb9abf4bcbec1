//! The files of the log: their sizes, their order, and when they are removed.

use std::sync::Arc;

use super::log::{ID, append, changes, create_log, damage_messages, merged, read_back, state_after};
use super::power_cuts::FakeDisk;
use crate::store::encoding::group::KeyChanges;
use crate::store::encoding::stored_value::{KeyBytes, StoredValue};
use crate::store::log::WriteAheadLog;
use crate::store::log::frames::read_log;
use crate::store::log::recovered_log::RecoveredLog;

/// Returns a group of this length.
fn large(number: u64, length: usize) -> KeyChanges {
    let mut noise = vec![0; length];
    rand::Rng::fill(&mut <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(number), &mut noise[..]);
    [(KeyBytes::from(format!("z{number}").into_bytes()), Some(StoredValue::Item(noise.into())))].into()
}

#[test]
fn a_full_file_is_replaced_and_removed_once_folded() {
    let disk = FakeDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    let (mut number, mut firsts) = (0, Vec::new());
    while disk.log().len() < 3 {
        let files = disk.log().len();
        number += 1;
        assert_eq!(log.append_changes(&large(number, 1 << 20)), number);
        if disk.log().len() > files {
            firsts.push(number);
        }
    }
    assert_eq!(last_recovered_group(&disk), number, "no group is missing between the files");
    log.remove_folded_files(firsts[1] - 1);
    assert_eq!(disk.log().len(), 3, "the next file is not synced yet");
    log.persist(number, &KeyChanges::new()).unwrap();
    log.remove_folded_files(firsts[1] - 2);
    assert_eq!(disk.log().len(), 2, "the chunks lack the last group of the oldest file");
    log.remove_folded_files(firsts[1] - 1);
    assert_eq!(disk.log().len(), 1);
    let recovered = RecoveredLog::from_contents(ID, 0, read_log(&disk).unwrap());
    assert_eq!((recovered.first_group, recovered.last_group), (firsts[1], number));
}

fn last_recovered_group(disk: &FakeDisk) -> u64 {
    RecoveredLog::from_contents(ID, 0, read_log(disk).unwrap()).last_group
}

/// The next start reads nothing from a log whose groups are all folded.
#[test]
fn a_folded_log_is_rotated() {
    let disk = FakeDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    append(&log, 1..=4);
    log.persist(4, &merged(1..=4)).unwrap();
    log.remove_folded_files(3);
    log.rotate_if_folded().unwrap();
    assert_eq!(read_back(&disk).0, 1, "group 4 is not in the chunks");
    log.remove_folded_files(4);
    log.rotate_if_folded().unwrap();
    let recovered = RecoveredLog::from_contents(ID, 0, read_log(&disk).unwrap());
    assert_eq!((recovered.first_group, recovered.last_group, recovered.checkpoint_group, disk.log().len()), (5, 4, 4, 1));
    append(&log, 5..=5);
    assert_eq!(read_back(&disk).1, 5);
}

/// At 256 MiB nothing more is written until groups are folded.
#[test]
fn a_log_stops_at_its_limit_until_groups_are_folded() {
    let disk = FakeDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    let mut number = 0;
    while !log.is_full() {
        number += 1;
        log.append_changes(&large(number, 16 << 20));
        assert!(number < 20, "the log has no limit");
    }
    log.persist(number, &KeyChanges::new()).unwrap();
    log.append_changes(&changes(number + 1));
    assert!(log.is_failing());
    assert!(log.persist(number + 1, &changes(number + 1)).is_err());
    assert_eq!(last_recovered_group(&disk), number);
    log.remove_folded_files(number);
    assert!(!log.is_full());
    log.persist(number + 1, &changes(number + 1)).unwrap();
    assert_eq!(last_recovered_group(&disk), number + 1);
}

/// A frame whose end is missing is not used at all. A frame with a damaged part keeps its other
/// parts.
#[test]
fn a_cut_frame_is_dropped_and_a_damaged_one_keeps_its_other_parts() {
    let disk = FakeDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    let many: KeyChanges = (0..40).flat_map(|number| large(number, 8_000)).collect();
    let before = disk.log().pop_last().unwrap().1.len();
    assert_eq!(log.append_changes(&many), 1);
    let (file, whole) = disk.log().pop_last().unwrap();
    let pairs = |disk: &FakeDisk| {
        let recovered = RecoveredLog::from_contents(ID, 0, read_log(disk).unwrap());
        recovered.decode_batches(0, 1).unwrap().0.iter().map(|batch| batch.block.iter().count()).sum::<usize>()
    };
    assert_eq!(pairs(&disk), 40);
    for length in (before..whole.len()).step_by(997) {
        disk.change_log(file, |_| Some(whole[..length].to_vec()));
        assert_eq!((pairs(&disk), last_recovered_group(&disk)), (0, 0), "{length} bytes");
    }
    disk.change_log(file, |_| Some(whole.clone()));
    log.append_changes(&changes(2));
    let (file, whole) = disk.log().pop_last().unwrap();
    for at in (before + 10..whole.len() - 200).step_by(10_007) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        disk.change_log(file, |_| Some(damaged));
        let kept = pairs(&disk);
        assert!((25..40).contains(&kept), "{kept} of 40 are kept at {at}");
        assert_eq!(damage_messages(&disk), ["its log is damaged, and changes of group 1 are lost"]);
    }
}

/// Nothing here was synced, so the files after a cut frame are not used, and the next start removes
/// them.
#[test]
fn files_after_a_gap_are_removed() {
    let disk = FakeDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    append(&log, 1..=2);
    log.begin_epoch(crate::model::Epoch(8));
    append(&log, 3..=4);
    log.begin_epoch(crate::model::Epoch(9));
    append(&log, 5..=6);
    // the first file has no frames, so the third one has the groups 3 and 4
    let third = *disk.log().keys().nth(2).unwrap();
    disk.change_log(third, |mut bytes| {
        bytes.truncate(bytes.len() - 1);
        Some(bytes)
    });
    let mut recovered = RecoveredLog::from_contents(ID, 0, read_log(&disk).unwrap());
    assert_eq!(recovered.last_group, 3);
    recovered.truncate_and_sync(&disk).unwrap();
    assert_eq!(disk.log().len(), 3);
    let next = WriteAheadLog::new_closed(Arc::new(disk.clone()));
    next.open(&recovered);
    append(&next, 4..=4);
    assert_eq!(read_back(&disk), (1, 4, state_after(4)));
}

/// A file system may restore removed files in any order.
#[test]
fn files_restored_by_a_power_cut_are_not_a_gap() {
    let disk = FakeDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    for epoch in 1..=3 {
        log.begin_epoch(crate::model::Epoch(epoch));
        append(&log, 2 * epoch - 1..=2 * epoch);
    }
    let middle = *disk.log().keys().nth(2).unwrap();
    disk.change_log(middle, |_| None);
    let recover = |checkpoint_group| RecoveredLog::from_contents(ID, checkpoint_group, read_log(&disk).unwrap());
    assert_eq!((recover(4).first_group, recover(4).last_group), (5, 6));
    assert_eq!((recover(3).first_group, recover(3).last_group), (1, 2), "some chunks may lack group 4");
    let mut cleaned = recover(4);
    cleaned.truncate_and_sync(&disk).unwrap();
    assert_eq!(disk.log().len(), 1);
}
