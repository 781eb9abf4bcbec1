//! Changes that come while a fold runs.

use super::*;

/// A view of one identity whose records are folded.
struct FoldedView(View);

impl FoldedView {
    fn new() -> Self {
        let mut folded = Self(View::starting_at(Sequence(100)));
        folded.put("a", 1);
        folded.fold(folded.0.fold_jobs(1));
        assert_eq!(folded.0.unpacked_count(), 0);
        folded
    }

    fn key() -> EntryKey {
        EntryKey::new(Kind::Identity, ClusterName::parse("paris").unwrap(), "70000")
    }

    fn put(&mut self, app: &str, revision: i64) {
        let (key, value) = (Self::key(), format!("k8s:app={app};").into_bytes());
        let decoded = decoded(&key, &value);
        let source = SourceStamp { mod_revision: Revision(revision), ..SourceStamp::default() };
        let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
        let changes = vec![Change::Put { key, value: value.into(), decoded, source }];
        self.0.apply(Command::Apply { scope, changes, cursor: None }, SystemTime::UNIX_EPOCH);
    }

    fn fold(&mut self, jobs: Vec<FoldJob>) {
        assert_eq!(jobs.len(), 1);
        for job in jobs {
            self.0.fold(job.run());
        }
    }

    /// Returns the value and the revision of the identity.
    fn state(&self) -> (String, Revision) {
        let record = self.0.record(&Self::key()).unwrap();
        (String::from_utf8(record.value.to_vec()).unwrap(), record.source.mod_revision)
    }
}

/// A put of equal bytes gets no sequence, only a new revision.
#[test]
fn a_fold_keeps_the_revision_of_a_put_that_came_meanwhile() {
    let mut folded = FoldedView::new();
    folded.put("b", 2);
    let jobs = folded.0.fold_jobs(1);
    folded.put("b", 3);
    folded.fold(jobs);
    assert_eq!(folded.state(), ("k8s:app=b;".to_owned(), Revision(3)));
}

#[test]
fn a_fold_that_ends_late_keeps_newer_records() {
    let mut folded = FoldedView::new();
    folded.put("b", 2);
    let earlier = folded.0.fold_jobs(1);
    folded.put("c", 3);
    let later = folded.0.fold_jobs(1);
    folded.fold(later);
    assert_eq!(folded.state(), ("k8s:app=c;".to_owned(), Revision(3)));
    folded.fold(earlier);
    assert_eq!(folded.state(), ("k8s:app=c;".to_owned(), Revision(3)));
}

/// Returns a change of one of 330 addresses. With that many addresses a fold changes only a part of
/// a chunk, and can edit it.
fn random_ip_change(pair: &mut ViewPair, random: &mut StdRng, scope: &Scope) -> Change {
    let number = random.random_range(0..330);
    let key = EntryKey::new(scope.kind, scope.cluster.clone(), format!("10.1.{}.{}", number / 250, number % 250));
    match random.random_range(0..8) {
        0 => return Change::Delete { key },
        1 => return Change::Hold { key },
        _ => {}
    }
    let same = pair.reference.in_scope(scope).find(|record| record.key == key).map(|record| record.value.to_vec());
    let value = match (random.random_range(0..6), same) {
        (0, _) => b"{".to_vec(),
        (1 | 2, Some(same)) => same,
        _ => {
            let identity = random.random_range(300..330);
            format!(r#"{{"IP":"{}","HostIP":"172.18.0.2","ID":{identity},"K8sPodName":"pod-{identity}-x"}}"#, key.name).into_bytes()
        }
    };
    pair.revision += 1;
    let source = SourceStamp { mod_revision: Revision(pair.revision), lease: LeaseId(random.random_range(0..3)), held: false };
    Change::Put { decoded: decoded(&key, &value), value: value.into(), key, source }
}

#[test]
fn an_edited_chunk_equals_a_repacked_one() {
    let mut random = StdRng::seed_from_u64(3);
    let mut pair = ViewPair::new();
    let scope = Scope { cluster: cluster(0), kind: Kind::Ip };
    let decoded_rows = |chunks: &[Chunk]| -> Vec<(Record, IndexedFields)> {
        chunks.iter().flat_map(|chunk| (0..chunk.len()).map(|row| (chunk.record(row), chunk.indexed_fields(row)))).collect()
    };
    let mut edited = 0;
    for round in 0..24 {
        let count = if round == 0 { 1_000 } else { random.random_range(1..70) };
        let changes = (0..count).map(|_| random_ip_change(&mut pair, &mut random, &scope)).collect();
        let command = Command::Apply { scope: scope.clone(), changes, cursor: None };
        pair.apply(1, |_| command.clone());
        let Some(job) = pair.view.fold_jobs(1).pop() else { continue };
        if let Some(chunk) = job.edit_chunk() {
            edited += 1;
            assert_eq!(decoded_rows(std::slice::from_ref(&chunk)), decoded_rows(&job.repack()), "round {round}");
        }
        pair.view.fold(job.run());
        assert_eq!((pair.view.unpacked_count(), pair.view.restamped_row_count()), (0, 0), "round {round}");
        pair.compare(&mut random);
    }
    assert!(edited > 12, "only {edited} chunks were edited");
}

/// Chunks that a list adds while a fold runs must not be covered by its result.
#[test]
fn a_fold_is_dropped_if_a_list_adds_a_chunk_in_its_range() {
    let scope = Scope { cluster: cluster(0), kind: Kind::Identity };
    let put = |number: u32| {
        let key = EntryKey::new(scope.kind, scope.cluster.clone(), number.to_string());
        let value = format!("k8s:app=a{number};").into_bytes();
        Change::Put { decoded: decoded(&key, &value), value: value.into(), key, source: SourceStamp::default() }
    };
    // each fold covers keys below and above the new chunk: the only chunk, the lowest one, and one
    // between others
    for (earlier, changed, list) in [(vec![], vec![100, 900], 400), (vec![500], vec![100, 900], 400), (vec![200, 600], vec![300, 590], 400)]
    {
        let mut pair = ViewPair::new();
        let apply = |pair: &mut ViewPair, numbers: Vec<u32>| {
            let command = Command::Apply { scope: scope.clone(), changes: numbers.into_iter().map(put).collect(), cursor: None };
            pair.apply(1, |_| command.clone());
        };
        for number in &earlier {
            apply(&mut pair, (*number..*number + 4).collect());
        }
        changed.iter().for_each(|number| apply(&mut pair, vec![*number]));
        let jobs = pair.view.fold_jobs(4);
        assert!(!jobs.is_empty());
        apply(&mut pair, (list..list + 4).collect());
        assert_eq!(pair.view.unpacked_count(), changed.len(), "the list must be packed");
        for job in jobs {
            pair.view.fold(job.run());
        }
        let mut random = StdRng::seed_from_u64(1);
        pair.compare(&mut random);
        while let Some(job) = pair.view.fold_jobs(1).pop() {
            assert!(pair.view.fold(job.run()));
        }
        assert_eq!(pair.view.unpacked_count(), 0, "later folds pack the changes");
        pair.compare(&mut random);
    }
}
