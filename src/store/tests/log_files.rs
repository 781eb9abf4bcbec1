//! The files of the log: their sizes, their order, and when they are removed.

use std::sync::Arc;

use super::log::{ID, append, begin, changes, damage, found, merged, state};
use super::memory::Disk;
use crate::store::encoding::change::{Key, Value};
use crate::store::encoding::group::Changes;
use crate::store::log::Log;
use crate::store::log::frames::read_all;
use crate::store::log::run::Run;

/// A group of so many bytes.
fn large(number: u64, length: usize) -> Changes {
    let mut noise = vec![0; length];
    rand::Rng::fill(&mut <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(number), &mut noise[..]);
    [(Key::from(format!("z{number}").into_bytes()), Some(Value::Item(noise.into())))].into()
}

#[test]
fn a_full_file_is_followed_by_another_and_goes_once_the_chunks_have_passed_it() {
    let disk = Disk::default();
    let log = begin(Arc::new(disk.clone()), 1);
    let (mut number, mut firsts) = (0, Vec::new());
    while disk.log().len() < 3 {
        let files = disk.log().len();
        number += 1;
        assert_eq!(log.append_changes(&large(number, 1 << 20)), number);
        if disk.log().len() > files {
            firsts.push(number);
        }
    }
    assert_eq!(found_last(&disk), number, "nothing is missing over the files");
    log.cut(firsts[1] - 1);
    assert_eq!(disk.log().len(), 3, "the next file is not synced yet");
    log.persist(number, &Changes::new()).unwrap();
    log.cut(firsts[1] - 2);
    assert_eq!(disk.log().len(), 2, "all but its last group is in the chunks");
    log.cut(firsts[1] - 1);
    assert_eq!(disk.log().len(), 1);
    let run = Run::of(ID, 0, read_all(&disk).unwrap());
    assert_eq!((run.first, run.last), (firsts[1], number));
}

fn found_last(disk: &Disk) -> u64 {
    Run::of(ID, 0, read_all(disk).unwrap()).last
}

/// Where all is folded nothing of it is read at the next start.
#[test]
fn a_log_that_is_folded_is_begun_anew() {
    let disk = Disk::default();
    let log = begin(Arc::new(disk.clone()), 1);
    append(&log, 1..=4);
    log.persist(4, &merged(1..=4)).unwrap();
    log.cut(3);
    log.trim().unwrap();
    assert_eq!(found(&disk).0, 1, "one is not in the chunks");
    log.cut(4);
    log.trim().unwrap();
    let run = Run::of(ID, 0, read_all(&disk).unwrap());
    assert_eq!((run.first, run.last, run.folded, disk.log().len()), (5, 4, 4, 1));
    append(&log, 5..=5);
    assert_eq!(found(&disk).1, 5);
}

/// 256 MiB of the engine's taking nothing; then nothing is written until it does.
#[test]
fn a_log_that_nobody_takes_ends_at_its_bound_and_goes_on_after_it() {
    let disk = Disk::default();
    let log = begin(Arc::new(disk.clone()), 1);
    let mut number = 0;
    while !log.is_full() {
        number += 1;
        log.append_changes(&large(number, 16 << 20));
        assert!(number < 20, "no bound");
    }
    log.persist(number, &Changes::new()).unwrap();
    log.append_changes(&changes(number + 1));
    assert!(log.is_failing());
    assert!(log.persist(number + 1, &changes(number + 1)).is_err());
    assert_eq!(found_last(&disk), number);
    log.cut(number);
    assert!(!log.is_full());
    log.persist(number + 1, &changes(number + 1)).unwrap();
    assert_eq!(found_last(&disk), number + 1);
}

/// A frame of many parts counts as a whole or not at all, but for parts that are damaged.
#[test]
fn a_large_frame_is_written_in_parts_and_counts_only_whole() {
    let disk = Disk::default();
    let log = begin(Arc::new(disk.clone()), 1);
    let many: Changes = (0..40).flat_map(|number| large(number, 8_000)).collect();
    let before = disk.log().pop_last().unwrap().1.len();
    assert_eq!(log.append_changes(&many), 1);
    let (file, whole) = disk.log().pop_last().unwrap();
    let pairs = |disk: &Disk| {
        let run = Run::of(ID, 0, read_all(disk).unwrap());
        run.changes(0, 1).unwrap().0.iter().map(|run| run.pairs.iter().count()).sum::<usize>()
    };
    assert_eq!(pairs(&disk), 40);
    for length in (before..whole.len()).step_by(997) {
        disk.change_log(file, |_| Some(whole[..length].to_vec()));
        assert_eq!((pairs(&disk), found_last(&disk)), (0, 0), "{length} bytes");
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
        assert_eq!(damage(&disk), ["its log is damaged, and changes of group 1 are lost"]);
    }
}

/// Behind a gap nothing counts, and nothing of it is there when the next start has begun.
#[test]
fn files_behind_a_gap_are_removed() {
    let disk = Disk::default();
    let log = begin(Arc::new(disk.clone()), 1);
    append(&log, 1..=2);
    log.begin_epoch(crate::model::Epoch(8));
    append(&log, 3..=4);
    log.begin_epoch(crate::model::Epoch(9));
    append(&log, 5..=6);
    let second = *disk.log().keys().nth(2).unwrap();
    disk.change_log(second, |mut bytes| {
        bytes.truncate(bytes.len() - 1);
        Some(bytes)
    });
    let mut run = Run::of(ID, 0, read_all(&disk).unwrap());
    assert_eq!(run.last, 3);
    run.clean(&disk).unwrap();
    assert_eq!(disk.log().len(), 3);
    let next = Log::closed(Arc::new(disk.clone()));
    next.open(&run);
    append(&next, 4..=4);
    assert_eq!(found(&disk), (1, 4, state(4)));
}

/// The file system need not forget them in order.
#[test]
fn a_file_that_is_there_again_after_a_power_cut_is_no_gap() {
    let disk = Disk::default();
    let log = begin(Arc::new(disk.clone()), 1);
    for epoch in 1..=3 {
        log.begin_epoch(crate::model::Epoch(epoch));
        append(&log, 2 * epoch - 1..=2 * epoch);
    }
    let middle = *disk.log().keys().nth(2).unwrap();
    disk.change_log(middle, |_| None);
    let run = |folded| Run::of(ID, folded, read_all(&disk).unwrap());
    assert_eq!((run(4).first, run(4).last), (5, 6));
    assert_eq!((run(3).first, run(3).last), (1, 2), "group 4 is in no chunk for sure");
    let mut cleaned = run(4);
    cleaned.clean(&disk).unwrap();
    assert_eq!(disk.log().len(), 1);
}
