//! Which of several entries for one prefix an agent has: the one home of that rule.

use std::cmp::Reverse;

use crate::model::{ClusterName, Record};

/// How strong an ip entry is among those for its prefix; the strongest sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// What is derived from pod CIDRs stands in for what is not announced: also of the own cluster it is the weakest, for its sources are no
    /// stronger than those of the entries that pods have (`podCIDREntries`, `pkg/node/manager/manager.go`).
    is_fallback: bool,
    /// Agents have what is of their own cluster from sources that entries of other clusters do not overwrite (`defaultSources`, `pkg/source/source.go`).
    is_remote: bool,
    /// What a cluster announces stands before what its nodes' addresses say.
    is_derived: bool,
    /// An agent that lists now does not have an entry whose newest bytes it cannot use (docs/develop/protocol.md, trap 5).
    is_refused: bool,
    /// Else the last writer has it.
    newest: Reverse<u64>,
}

/// Why an entry is weaker than another one for its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakness {
    /// The other is of the agent's own cluster.
    Remote,
    /// The other is announced, this one is derived from a node.
    Derived,
    /// The newest bytes of this one could not be used.
    Refused,
    /// The other was written later.
    Older,
}

impl Rank {
    /// That of a record of an ip entry, for the agents of a cluster, where that is known.
    #[must_use]
    pub fn of(record: &Record, own: Option<&ClusterName>) -> Self {
        Self {
            is_fallback: record.key.is_fallback(),
            is_remote: own != Some(&record.key.cluster),
            is_derived: !record.key.kind.is_mirrored(),
            is_refused: record.rejection.is_some(),
            newest: Reverse(record.last_sequence.0),
        }
    }

    /// What makes it weaker than a stronger one.
    #[must_use]
    pub const fn weakness(&self, stronger: &Self) -> Weakness {
        if self.is_fallback != stronger.is_fallback {
            Weakness::Derived
        } else if self.is_remote != stronger.is_remote {
            Weakness::Remote
        } else if self.is_derived != stronger.is_derived {
            Weakness::Derived
        } else if self.is_refused != stronger.is_refused {
            Weakness::Refused
        } else {
            Weakness::Older
        }
    }
}
