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
