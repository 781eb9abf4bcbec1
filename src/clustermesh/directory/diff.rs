//! Compares the readings of the config directory: clusters that were added, changed or removed.
//!
//! [`AnnouncedFiles`] keeps the last announced content and turns a stable scan into events and a
//! state. A directory or a file that cannot be read removes nothing, and equal bytes announce
//! nothing. No IO and no clock.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::scan::{ClusterFile, ContentDigest, ScannedFile, ScannedFiles};
use super::{DirectoryEvent, DirectoryState};
use crate::model::ClusterName;

/// Content that was announced last, by cluster.
#[derive(Debug)]
pub(super) struct AnnouncedFiles {
    directory: PathBuf,
    clusters: BTreeMap<ClusterName, ContentDigest>,
    /// True if the last reading succeeded. The first success after a failure announces the full set
    /// of clusters.
    readable: bool,
}

impl AnnouncedFiles {
    /// Creates the state in which nothing was announced.
    pub(super) fn empty(directory: PathBuf) -> Self {
        Self { directory, clusters: BTreeMap::new(), readable: false }
    }

    /// Returns the events that lead from the last reading to this one, in order, and the state to
    /// publish.
    pub(super) fn apply_scan(&mut self, reading: &Result<ScannedFiles, String>) -> (Vec<DirectoryEvent>, DirectoryState) {
        let files = match reading {
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
    fn reading(files: &[&str]) -> Result<ScannedFiles, String> {
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
    fn shown(events: &[DirectoryEvent]) -> Vec<String> {
        let show = |event: &DirectoryEvent| match event {
            DirectoryEvent::Read(state) => panic!("{state:?} is sent by the watcher only"),
            DirectoryEvent::Upserted { cluster, path, content, digest: got } => {
                let content = std::str::from_utf8(content).unwrap();
                assert_eq!((path, got), (&PathBuf::from("/config").join(cluster.as_str()), &digest(content)));
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
    fn each_reading_announces_only_what_it_changes() {
        let gone = || Err("no such directory".to_owned());
        let steps: Vec<(Result<ScannedFiles, String>, &[&str])> = vec![
            (gone(), &[]),
            (reading(&["a=1", "b=1", "x.yaml?"]), &["+a=1", "+b=1", "all:a,b"]),
            (reading(&["a=1", "b=1"]), &[]),
            (reading(&["a=1", "b=2"]), &["+b=2"]),
            (reading(&["a!", "b=2"]), &[]),
            (reading(&["a=1", "b=2"]), &[]),
            (reading(&["a!", "b=2"]), &[]),
            (reading(&["a=2", "b=2"]), &["+a=2"]),
            (gone(), &[]),
            (gone(), &[]),
            (reading(&["a=2", "c=1"]), &["+c=1", "-b", "all:a,c"]),
            (reading(&[]), &["-a", "-c"]),
        ];
        let mut announced = AnnouncedFiles::empty("/config".into());
        for (step, (reading, expected)) in steps.into_iter().enumerate() {
            assert_eq!(shown(&announced.apply_scan(&reading).0), expected, "step {step}");
        }
    }

    #[test]
    fn an_unreadable_file_at_start_counts_as_present() {
        let mut announced = AnnouncedFiles::empty("/config".into());
        let (events, state) = announced.apply_scan(&reading(&["a!", "x.yaml?"]));
        assert_eq!(shown(&events), ["all:a"]);
        let invalid = BTreeMap::from([("a".to_owned(), "denied".to_owned()), ("x.yaml".to_owned(), "invalid".to_owned())]);
        assert_eq!(state, DirectoryState { readable: true, error: None, invalid });
    }
}
