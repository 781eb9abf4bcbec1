//! The announce journal: what it holds after a kill, a torn write, a rotation and a cut.

use std::fs;
use std::path::{Path, PathBuf};

use super::key;
use crate::model::{EntryKey, Epoch, Kind, Sequence};
use crate::store::{Journal, JournalRun, read_journals};

fn announced(sequence: u64) -> (Sequence, Option<EntryKey>) {
    (Sequence(sequence), Some(key(Kind::Ip, "paris", &format!("10.0.0.{sequence}"))))
}

fn append(journal: &mut Journal, sequences: impl IntoIterator<Item = u64>) {
    let records: Vec<_> = sequences.into_iter().map(announced).collect();
    journal.append(records.iter().map(|(sequence, key)| (*sequence, key.as_ref())));
}

fn begin(directory: &Path, epoch: u64) -> Journal {
    let (journal, begun) = Journal::begin(directory, Epoch(epoch), Sequence(0));
    begun.unwrap();
    journal
}

fn run(epoch: u64, sequences: std::ops::RangeInclusive<u64>) -> JournalRun {
    JournalRun { epoch: Epoch(epoch), began: Sequence(0), records: sequences.map(announced).collect() }
}

fn journal_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory.join("journal")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_was_appended_is_read_at_the_next_start_and_removed_when_it_is_settled() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(read_journals(directory.path()).unwrap(), []);
    let mut first = begin(directory.path(), 1);
    append(&mut first, 1..=2);
    append(&mut first, 3..=5);
    first.append([(Sequence(6), None)].into_iter());
    drop(first);
    let mut expected = run(1, 1..=5);
    expected.records.push((Sequence(6), None));
    assert_eq!(read_journals(directory.path()).unwrap(), [expected.clone()]);
    let mut second = begin(directory.path(), 2);
    append(&mut second, 7..=7);
    assert_eq!(read_journals(directory.path()).unwrap(), [expected, run(2, 7..=7)]);
    second.remove_earlier().unwrap();
    assert_eq!(read_journals(directory.path()).unwrap(), [run(2, 7..=7)]);
}

#[test]
fn a_torn_or_damaged_record_ends_the_run_before_it() {
    let directory = tempfile::tempdir().unwrap();
    append(&mut begin(directory.path(), 1), 1..=3);
    let path = journal_files(directory.path()).remove(0);
    let whole = fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let runs = read_journals(directory.path()).unwrap();
        let full = run(1, 1..=3);
        assert!(runs.is_empty() || full.records.starts_with(&runs[0].records) && runs[0].records.len() < 3, "cut at {cut}: {runs:?}");
    }
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &damaged).unwrap();
        let runs = read_journals(directory.path()).unwrap();
        assert!(runs.is_empty() || run(1, 1..=3).records.starts_with(&runs[0].records) && runs[0].records.len() < 3, "bit {bit}");
    }
}

#[test]
fn a_record_of_another_start_is_not_taken_for_one_of_this() {
    let directory = tempfile::tempdir().unwrap();
    append(&mut begin(directory.path(), 1), 1..=1);
    append(&mut begin(directory.path(), 2), 2..=2);
    let [first, second] = journal_files(directory.path()).try_into().unwrap();
    let head = fs::read(&second).unwrap().len() - (fs::read(&first).unwrap().len() - head_length(directory.path()));
    let mixed = [fs::read(&first).unwrap(), fs::read(&second).unwrap()[head..].to_vec()].concat();
    fs::write(&first, mixed).unwrap();
    fs::remove_file(second).unwrap();
    assert_eq!(read_journals(directory.path()).unwrap(), [run(1, 1..=1)]);
}

/// The bytes of a file without records.
fn head_length(directory: &Path) -> usize {
    let empty = directory.join("empty");
    drop(begin(&empty, 3));
    fs::read(journal_files(&empty).remove(0)).unwrap().len()
}

#[test]
fn a_full_file_is_followed_by_another_and_goes_once_the_store_has_passed_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = begin(directory.path(), 1);
    let mut sequence = 0;
    while journal_files(directory.path()).len() < 3 {
        append(&mut journal, sequence + 1..=sequence + 20_000);
        sequence += 20_000;
        journal.cut(Sequence(0));
    }
    let runs = read_journals(directory.path()).unwrap();
    let sequences: Vec<u64> = runs.iter().flat_map(|run| run.records.iter().map(|(sequence, _)| sequence.0)).collect();
    assert!(sequences.iter().copied().eq(1..=sequence), "nothing is missing over the files");
    let first_end = runs[0].records.last().unwrap().0;
    journal.cut(Sequence(first_end.0 - 1));
    assert_eq!(journal_files(directory.path()).len(), 3, "its last announcement is not stored yet");
    journal.cut(first_end);
    assert_eq!(read_journals(directory.path()).unwrap()[0].records[0].0, first_end.next());
}

#[test]
fn a_journal_that_cannot_be_written_stops_nothing_and_begins_again_when_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = begin(directory.path(), 1);
    append(&mut journal, 1..=2);
    let place = directory.path().join("journal");
    let moved = directory.path().join("moved");
    // rotate, so that the next append needs a new file where there can be none
    append(&mut journal, 3..=120_000);
    journal.cut(Sequence(0));
    fs::rename(&place, &moved).unwrap();
    fs::write(&place, "in the way").unwrap();
    append(&mut journal, 120_001..=120_002);
    fs::remove_file(&place).unwrap();
    fs::rename(&moved, &place).unwrap();
    append(&mut journal, 120_003..=120_004);
    let runs = read_journals(directory.path()).unwrap();
    assert!(runs.last() == Some(&run(1, 120_003..=120_004)), "the gap is there to be seen");
}
