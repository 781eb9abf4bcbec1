//! Tests of the rules by whole decisions at given times, and of file states and metrics.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;

use super::file_state::{FileState, FileVersion};
use super::metrics::metrics;
use super::rules::{
    ChangeRules, Decision, FollowedFile, HeldBackChange, HoldBackReason, WithdrawnWorkloads, decide, first_wait, next_decision,
};
use super::{FollowReport, read_content};
use crate::announce::error::{FileError, ParsedFile};
use crate::announce::files::check_files;

const RULES: ChangeRules = ChangeRules { stable_time: seconds(3), hold_time: seconds(60), max_withdrawal: share(50) };

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn share(percent: u8) -> super::MaxWithdrawal {
    super::MaxWithdrawal::from_percent(percent)
}

/// Returns the state of a version of a file.
fn state(version: u64) -> FileState {
    FileState::Present(FileVersion {
        device: 1,
        inode: 2,
        size: 3,
        modified: (version.cast_signed(), 0),
        changed: (version.cast_signed(), 0),
    })
}

/// Returns the parsed content of a file with these workloads.
fn file(path: &str, workloads: &[u32]) -> Result<Arc<ParsedFile>, FileError> {
    let entry = |number: &u32| format!("- {{namespace: a, name: w{number}, labels: {{app: x}}, ips: [10.0.0.{number}]}}\n");
    let list: String = workloads.iter().map(entry).collect();
    let text = if list.is_empty() { "workloads: []\n".to_owned() } else { format!("workloads:\n{list}") };
    let yaml = serde_yaml_ng::from_str(&text).unwrap();
    Ok(Arc::new(ParsedFile { path: path.into(), text, yaml }))
}

fn followed(path: &str, workloads: &[u32], now: Instant) -> FollowedFile {
    FollowedFile::new(state(0), file(path, workloads).unwrap(), now)
}

fn held_back(path: &str, withdrawn: usize, workloads: usize, is_everything: bool, until: Instant) -> Decision {
    let reason = HoldBackReason::Withdrawal(WithdrawnWorkloads { withdrawn, workloads, is_everything });
    Decision::HoldBack(HeldBackChange { path: path.into(), reason, until: Some(until) })
}

#[test]
fn a_file_is_read_once_it_is_stable() {
    let begin = Instant::now();
    let mut followed_file = followed("a", &[1, 2], begin);
    // one write per second
    for version in 1..=10 {
        let now = begin + seconds(version);
        assert!(followed_file.observe(state(version), now) && !followed_file.observe(state(version), now));
        assert!(!followed_file.is_due(&RULES, now + Duration::from_millis(2_999), false));
    }
    assert_eq!(next_decision(std::slice::from_ref(&followed_file), &[], &RULES, begin + seconds(10)), Some(begin + seconds(13)));
    assert!(followed_file.is_due(&RULES, begin + seconds(10), true), "SIGHUP");
    assert!(followed_file.is_due(&RULES, begin + seconds(13), false));
    // back to the applied version, so there is no change
    followed_file.observe(state(0), begin + seconds(14));
    assert!(!followed_file.is_due(&RULES, begin + seconds(60), true));
}

#[test]
fn a_large_withdrawal_is_held_back_for_a_minute() {
    let begin = Instant::now();
    let until = begin + seconds(60);
    let all = [1, 2, 3, 4];
    for (after, max, expected) in [
        (&[1, 2][..], 50, Decision::Apply),
        (&[1], 50, held_back("a", 3, 4, false, until)),
        (&[5, 6, 7, 8], 50, held_back("a", 4, 4, false, until)),
        (&[1], 75, Decision::Apply),
        (&[1, 2, 3], 0, held_back("a", 1, 4, false, until)),
        (&[1, 2, 3, 4, 5], 0, Decision::Apply),
        (&[], 99, held_back("a", 4, 4, true, until)),
        (&[], 100, Decision::Apply),
    ] {
        let rules = ChangeRules { max_withdrawal: share(max), ..RULES };
        let mut files = [followed("a", &all, begin)];
        files[0].observe(state(1), begin);
        files[0].set_content(file("a", after));
        let decided = |seconds: u64, at_once| decide(&files, &rules, begin + Duration::from_secs(seconds), at_once);
        assert_eq!(decided(59, false), [expected], "{after:?} {max}");
        assert_eq!((decided(60, false), decided(3, true)), (vec![Decision::Apply], vec![Decision::Apply]), "{after:?} {max}");
    }
}

#[test]
fn a_deleted_file_withdraws_all_and_an_unreadable_file_nothing() {
    let begin = Instant::now();
    let mut files = [followed("a", &[1], begin)];
    files[0].observe(FileState::Missing, begin);
    files[0].set_content(read_content(Path::new("a"), &FileState::Missing));
    let decisions = decide(&files, &RULES, begin + seconds(3), false);
    assert_eq!(decisions, [held_back("a", 1, 1, true, begin + seconds(60))]);
    assert_eq!(next_decision(&files, &decisions, &RULES, begin + seconds(3)), Some(begin + seconds(60)));
    files[0].observe(FileState::Unreadable("Permission denied".into()), begin);
    files[0].set_content(read_content(Path::new("a"), files[0].state()));
    let error = check_files([files[0].content(&Decision::Apply)]).unwrap_err();
    assert_eq!(error[0].to_string(), "a: cannot be read: Permission denied");
    // entries other than workloads count as well
    let service = "services:\n- {namespace: a, name: b, ports: [{port: 1}], backends: {ips: [10.0.0.1]}}\n";
    let services = ParsedFile { path: "a".into(), text: service.into(), yaml: serde_yaml_ng::from_str(service).unwrap() };
    let mut files = [FollowedFile::new(state(0), Arc::new(services), begin)];
    files[0].observe(state(1), begin);
    files[0].set_content(file("a", &[]));
    assert_eq!(decide(&files, &RULES, begin + seconds(3), false), [held_back("a", 0, 0, true, begin + seconds(60))]);
}

#[test]
fn rewriting_the_same_content_does_not_extend_the_hold_time() {
    let begin = Instant::now();
    let mut files = [followed("a", &[1, 2, 3], begin)];
    let mut write = |version: u64, workloads: &[u32]| {
        files[0].observe(state(version), begin + seconds(version));
        let unread = decide(&files, &RULES, begin + seconds(version), false);
        files[0].set_content(file("a", workloads));
        (unread, decide(&files, &RULES, begin + seconds(version + 3), false))
    };
    let first = held_back("a", 2, 3, false, begin + seconds(1 + 60));
    assert_eq!(write(1, &[1]), (vec![Decision::Keep], vec![first.clone()]));
    assert_eq!(write(20, &[1]), (vec![Decision::Keep], vec![first]));
    assert_eq!(write(40, &[2]), (vec![Decision::Keep], vec![held_back("a", 2, 3, false, begin + seconds(40 + 60))]));
    // back to the applied content
    assert_eq!(write(50, &[1, 2, 3]), (vec![Decision::Keep], vec![Decision::Keep]));
    assert!(!files[0].is_unread());
}

#[test]
fn a_workload_that_moves_to_another_file_is_not_withdrawn() {
    let begin = Instant::now();
    let moved = |second: &[u32]| {
        let mut files = [followed("a", &[1, 2, 3], begin), followed("b", &[4, 5, 6], begin)];
        files[0].observe(state(1), begin);
        files[0].set_content(file("a", &[3]));
        files[1].observe(state(1), begin);
        files[1].set_content(file("b", second));
        decide(&files, &RULES, begin + seconds(3), false)
    };
    let until = begin + seconds(60);
    assert_eq!(moved(&[1, 2, 4, 5, 6]), [Decision::Apply, Decision::Apply]);
    assert_eq!(moved(&[1, 2]), [held_back("a", 2, 3, false, until), held_back("b", 3, 3, false, until)]);
}

#[test]
fn a_file_that_keeps_changing_is_reported_after_a_minute() {
    let begin = Instant::now();
    let mut files = [followed("a", &[1], begin)];
    for second in 1..=61 {
        files[0].observe(state(second), begin + seconds(second));
        let expected = match second {
            61 => Decision::HoldBack(HeldBackChange { path: "a".into(), reason: HoldBackReason::KeepsChanging, until: None }),
            _ => Decision::Keep,
        };
        assert_eq!(decide(&files, &RULES, begin + seconds(second), false), [expected], "{second}");
    }
    files[0].set_content(file("a", &[1, 2]));
    assert_eq!(decide(&files, &RULES, begin + seconds(64), false), [Decision::Apply]);
    files[0].apply();
    assert_eq!(decide(&files, &RULES, begin + seconds(65), false), [Decision::Keep]);
    assert_eq!(files[0].content(&Decision::Keep).unwrap().yaml.workloads.len(), 2);
}

#[test]
fn shares_are_percentages() {
    for (text, expected) in
        [("0%", Some(0)), ("50%", Some(50)), ("100%", Some(100)), ("101%", None), ("50", None), ("%", None), ("-1%", None)]
    {
        assert_eq!(text.parse().ok(), expected.map(share), "{text}");
    }
    assert_eq!(
        (share(50).to_string(), "half".parse::<super::MaxWithdrawal>().unwrap_err().as_str()),
        ("50%".into(), "must be a percentage from 0% to 100%, such as 50%")
    );
}

#[test]
fn a_start_waits_only_for_recently_changed_files() {
    let now = Instant::now() + seconds(10);
    let at = |state: FileState, ago: u64| super::first_seen(state, RULES.stable_time, now, SystemTime::UNIX_EPOCH + seconds(100 + ago));
    let wait = |seen: &[(FileState, Instant)]| first_wait(seen, &RULES, now);
    assert_eq!(wait(&[at(state(100), 3), at(state(100), 1_000)]), Duration::ZERO);
    assert_eq!(wait(&[at(state(100), 1), at(state(100), 1_000)]), seconds(2));
    assert_eq!(wait(&[at(state(100), 1), at(FileState::Missing, 0)]), Duration::ZERO);
    // a clock that was set back
    assert_eq!(wait(&[at(state(500), 0)]), seconds(3));
}

#[test]
fn missing_and_unreadable_files_are_distinguished() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a");
    assert_eq!(FileState::read(&path), FileState::Missing);
    fs::write(&path, "one").unwrap();
    let first = FileState::read(&path);
    assert!(first == FileState::read(&path) && first.age(SystemTime::now()) < seconds(60), "{first:?}");
    fs::write(&path, "three").unwrap();
    assert_ne!(FileState::read(&path), first);
    assert_eq!(FileState::read(&path.join("below")), FileState::Unreadable("Not a directory (os error 20)".into()));
}

#[test]
fn metrics_name_the_files_with_held_back_changes() {
    let text = "cluster: {name: vms, id: 77}\nworkloads:\n- {namespace: a, name: b, labels: {app: x}, ips: [10.0.0.1]}\n";
    let yaml = serde_yaml_ng::from_str(text).unwrap();
    let plan = check_files([Ok(Arc::new(ParsedFile { path: "a".into(), text: text.into(), yaml }))]).unwrap();
    let reason = HoldBackReason::Withdrawal(WithdrawnWorkloads { withdrawn: 40, workloads: 50, is_everything: false });
    let changes = [
        HeldBackChange { path: "/a \"b\".yaml".into(), reason, until: Some(Instant::now()) },
        HeldBackChange { path: "c.yaml".into(), reason: HoldBackReason::KeepsChanging, until: None },
    ];
    assert_eq!(
        changes.clone().map(|change| change.to_string()),
        ["/a \"b\".yaml: would withdraw 40 of 50 workloads", "c.yaml: keeps changing"]
    );
    let report = FollowReport { held_back: changes.to_vec(), errors: Vec::new() };
    let expected = r#"# HELP meshkeep_announce_workloads Announced workloads.
# TYPE meshkeep_announce_workloads gauge
meshkeep_announce_workloads{cluster="vms"} 1
# HELP meshkeep_announce_held_files Files with a change that is held back.
# TYPE meshkeep_announce_held_files gauge
meshkeep_announce_held_files{cluster="vms"} 2
# HELP meshkeep_announce_held_workloads Workloads that a change to the file would withdraw; the change is held back.
# TYPE meshkeep_announce_held_workloads gauge
meshkeep_announce_held_workloads{cluster="vms",file="/a \"b\".yaml"} 40
# HELP meshkeep_announce_file_errors Errors in the files; while there are any, no change is applied.
# TYPE meshkeep_announce_file_errors gauge
meshkeep_announce_file_errors{cluster="vms"} 0
"#;
    assert_eq!(metrics(&plan, &report), expected.replace("/a \"b\"", r#"/a \"b\""#));
}
