//! Compares the scans of the config directory: finds clusters that were added, changed or removed.
//!
//! [`AnnouncedFiles`] keeps the digests of the last announced files, and turns a stable scan into
//! events and a state. A directory or a file that cannot be read removes no cluster, and unchanged
//! bytes cause no event. The module is pure: no IO, no clock.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::scan::{ClusterFile, ContentDigest, ScannedFile, ScannedFiles};
use super::{DirectoryEvent, DirectoryState};
use crate::model::ClusterName;

/// Digests of the last announced files, by cluster.
#[derive(Debug)]
pub(super) struct AnnouncedFiles {
    directory: PathBuf,
    clusters: BTreeMap<ClusterName, ContentDigest>,
    /// True if the last scan succeeded. The first success after a failure announces the full set of
    /// clusters.
    readable: bool,
}

impl AnnouncedFiles {
    /// Creates the state before the first scan.
    pub(super) fn empty(directory: PathBuf) -> Self {
        Self { directory, clusters: BTreeMap::new(), readable: false }
    }

    /// Returns the events that lead from the last scan to this one, in order, and the state to
    /// publish.
    pub(super) fn apply_scan(&mut self, scan: &Result<ScannedFiles, String>) -> (Vec<DirectoryEvent>, DirectoryState) {
        let files = match scan {
            Ok(files) => files,
            Err(error) => {
                self.readable = false;
                return (Vec::new(), DirectoryState { readable: false, error: Some(error.clone()), invalid: BTreeMap::new() });
            }
        };
        let mut events = Vec::new();
        let mut present = std::collections::BTreeSet::new();
        let mut invalid = BTreeMap::new();
        for (file_name, file) in files {
            match file {
                ScannedFile::Cluster(file) => {
                    present.insert(file.cluster.clone());
                    events.extend(self.upsert(file));
                }
                ScannedFile::Unreadable { cluster, reason } => {
                    present.insert(cluster.clone());
                    invalid.insert(file_name.clone(), reason.clone());
                }
                ScannedFile::InvalidName { reason } | ScannedFile::Skipped { reason } => {
                    invalid.insert(file_name.clone(), reason.clone());
                }
            }
        }
        let removed = self.clusters.extract_if(.., |cluster, _| !present.contains(cluster));
        events.extend(removed.map(|(cluster, _)| DirectoryEvent::Removed { cluster }));
        if !std::mem::replace(&mut self.readable, true) {
            events.push(DirectoryEvent::FirstScan { present });
        }
        (events, DirectoryState { readable: true, error: None, invalid })
    }

    /// Returns an event for a cluster file, if its bytes differ from the last announced ones.
    fn upsert(&mut self, file: &ClusterFile) -> Option<DirectoryEvent> {
        let before = self.clusters.insert(file.cluster.clone(), file.digest);
        (before != Some(file.digest)).then(|| DirectoryEvent::Upserted {
            cluster: file.cluster.clone(),
            path: self.directory.join(file.cluster.as_str()),
            content: file.content.clone(),
            digest: file.digest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ClusterName {
        ClusterName::parse(text).unwrap()
    }

    /// Files as `name=content`. `name!` is unreadable, and `name?` has an invalid name.
    fn scanned(files: &[&str]) -> Result<ScannedFiles, String> {
        let file = |text: &&str| match text.split_once('=') {
            Some((cluster, content)) => {
                let file = ClusterFile { cluster: name(cluster), content: content.as_bytes().into(), digest: digest(content) };
                (cluster.to_owned(), ScannedFile::Cluster(file))
            }
            None if text.ends_with('!') => {
                let cluster = text.trim_end_matches('!');
                (cluster.to_owned(), ScannedFile::Unreadable { cluster: name(cluster), reason: "denied".into() })
            }
            None => (text.trim_end_matches('?').to_owned(), ScannedFile::InvalidName { reason: "invalid".into() }),
        };
        Ok(files.iter().map(file).collect())
    }

    fn digest(content: &str) -> ContentDigest {
        let mut digest = [0; 32];
        digest[..content.len()].copy_from_slice(content.as_bytes());
        digest
    }

    /// Events as `+name=content`, `-name` and `all:name,name`.
    fn event_texts(events: &[DirectoryEvent]) -> Vec<String> {
        let show = |event: &DirectoryEvent| match event {
            DirectoryEvent::StateChanged(state) => panic!("{state:?} is sent by the watcher only"),
            DirectoryEvent::Upserted { cluster, path, content, digest: announced_digest } => {
                let content = std::str::from_utf8(content).unwrap();
                assert_eq!((path, announced_digest), (&PathBuf::from("/config").join(cluster.as_str()), &digest(content)));
                format!("+{cluster}={content}")
            }
            DirectoryEvent::Removed { cluster } => format!("-{cluster}"),
            DirectoryEvent::FirstScan { present } => {
                format!("all:{}", present.iter().map(ClusterName::as_str).collect::<Vec<_>>().join(","))
            }
        };
        events.iter().map(show).collect()
    }

    #[test]
    fn a_scan_announces_only_its_changes() {
        let unreadable = || Err("no such directory".to_owned());
        let steps: Vec<(Result<ScannedFiles, String>, &[&str])> = vec![
            (unreadable(), &[]),
            (scanned(&["a=1", "b=1", "x.yaml?"]), &["+a=1", "+b=1", "all:a,b"]),
            (scanned(&["a=1", "b=1"]), &[]),
            (scanned(&["a=1", "b=2"]), &["+b=2"]),
            (scanned(&["a!", "b=2"]), &[]),
            (scanned(&["a=1", "b=2"]), &[]),
            (scanned(&["a!", "b=2"]), &[]),
            (scanned(&["a=2", "b=2"]), &["+a=2"]),
            (unreadable(), &[]),
            (unreadable(), &[]),
            (scanned(&["a=2", "c=1"]), &["+c=1", "-b", "all:a,c"]),
            (scanned(&[]), &["-a", "-c"]),
        ];
        let mut announced = AnnouncedFiles::empty("/config".into());
        for (step, (scan, expected)) in steps.into_iter().enumerate() {
            assert_eq!(event_texts(&announced.apply_scan(&scan).0), expected, "step {step}");
        }
    }

    #[test]
    fn an_unreadable_file_at_start_counts_as_present() {
        let mut announced = AnnouncedFiles::empty("/config".into());
        let (events, state) = announced.apply_scan(&scanned(&["a!", "x.yaml?"]));
        assert_eq!(event_texts(&events), ["all:a"]);
        let invalid = BTreeMap::from([("a".to_owned(), "denied".to_owned()), ("x.yaml".to_owned(), "invalid".to_owned())]);
        assert_eq!(state, DirectoryState { readable: true, error: None, invalid });
    }
}
