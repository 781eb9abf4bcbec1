//! Precedence between ipcache entries for one prefix, as agents resolve it. No other module
//! implements that rule.

use std::cmp::Reverse;

use crate::model::{ClusterName, Record};

/// Rank of an ipcache entry among the entries for its prefix. The entry that agents use sorts
/// first. The fields are compared in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryRank {
    /// Entries derived from pod CIDRs are a fallback and rank last, even those of the own cluster:
    /// an agent does not let a pod CIDR override an announced entry, because its source is no
    /// stronger (`podCIDREntries`, `pkg/node/manager/manager.go`).
    is_fallback: bool,
    /// Entries of other clusters do not overwrite those of the agent's own cluster
    /// (`defaultSources`, `pkg/source/source.go`).
    is_remote: bool,
    /// Announced entries precede entries derived from nodes.
    is_derived: bool,
    /// An agent that starts now does not get an entry whose newest bytes are unusable
    /// (docs/develop/protocol.md, trap 5).
    is_rejected: bool,
    /// Otherwise the last writer wins.
    newest: Reverse<u64>,
}

/// Reason why an entry ranks below another one for its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankReason {
    /// The other entry belongs to the agent's own cluster.
    Remote,
    /// The other entry is announced, and this one is derived from a node.
    Derived,
    /// The newest bytes of this entry cannot be used.
    Rejected,
    /// The other entry was written later.
    Older,
}

impl EntryRank {
    /// Returns the rank of an ipcache entry for the agents of the cluster `own`, if it is known.
    #[must_use]
    pub fn of(record: &Record, own: Option<&ClusterName>) -> Self {
        Self {
            is_fallback: record.key.is_fallback(),
            is_remote: own != Some(&record.key.cluster),
            is_derived: !record.key.kind.is_mirrored(),
            is_rejected: record.rejection.is_some(),
            newest: Reverse(record.last_sequence.0),
        }
    }

    /// Returns why this rank is below a stronger one.
    #[must_use]
    pub const fn reason_below(&self, stronger: &Self) -> RankReason {
        if self.is_fallback != stronger.is_fallback {
            RankReason::Derived
        } else if self.is_remote != stronger.is_remote {
            RankReason::Remote
        } else if self.is_derived != stronger.is_derived {
            RankReason::Derived
        } else if self.is_rejected != stronger.is_rejected {
            RankReason::Rejected
        } else {
            RankReason::Older
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EntryKey, Kind, Sequence};
    use crate::view::tests::bare_record;

    #[test]
    fn an_older_entry_of_the_own_cluster_is_stronger() {
        let entry = |cluster: &str, sequence| {
            let key = EntryKey::new(Kind::Ip, ClusterName::parse(cluster).unwrap(), "10.0.0.1");
            Record { key, last_sequence: Sequence(sequence), ..(*bare_record(1, sequence)).clone() }
        };
        let (own, newer) = (entry("paris", 1), entry("rome", 2));
        let ranks = |cluster: Option<&ClusterName>| [&own, &newer].map(|record| EntryRank::of(record, cluster));
        let [of_own, of_newer] = ranks(Some(&own.key.cluster));
        assert!(of_own < of_newer);
        assert_eq!(of_newer.reason_below(&of_own), RankReason::Remote);
        let [of_older, of_newer] = ranks(None);
        assert!(of_newer < of_older);
        assert_eq!(of_older.reason_below(&of_newer), RankReason::Older);
    }
}
