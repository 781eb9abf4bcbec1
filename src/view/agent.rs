//! What one agent would make of the entries: Cilium's ipcache, with its precedence of sources and its shadowing.
//!
//! Owns: the entries as an agent's forward map has them, one for each prefix. Receives upserts and deletes, answers with the
//! [`Notification`] that the agent's listeners (the datapath) get, or with why there is none. `explain` runs the entries that cover an
//! address through it. The rules are those of `pkg/ipcache/ipcache.go` (docs/protocol.md §4.4 to §4.6). Deliberately lacks: clusters; which of
//! several claims of one prefix an agent has is the last one that was written.
//!
//! One quirk is left out: Cilium removes a CIDR silently where a host entry for its *base address* exists, also if it is not of full
//! length, so that the datapath keeps it. Here only a shadowed CIDR goes silently, so that the notifications, replayed, give the dump.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{IpEntry, NamedPort, ObjectPrefix};

pub use source::{Era, Source};

/// What the agent's map has for one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Where the agent has it from.
    pub source: Source,
    /// The numeric identity.
    pub identity: u32,
    /// The node that hosts it: the peer of the tunnel.
    pub host_ip: Option<IpAddr>,
    /// IPsec key index; 0 is none.
    pub encryption_key: u8,
    /// The pod, where one is known.
    pub metadata: Option<Metadata>,
}

/// What Kubernetes says of an address: there only if one of its parts is (docs/protocol.md §4.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes pod.
    pub pod_name: String,
    /// Ports that have names.
    pub named_ports: Vec<NamedPort>,
}

/// What the datapath is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// The prefix means this now.
    Upsert {
        /// A host is told as the prefix of full length.
        net: IpNet,
        /// What it meant before: of the CIDR that is shadowed from now on, or of the host that shadowed it till now.
        old: Option<(u32, Option<IpAddr>)>,
        /// What it means.
        new: Claim,
    },
    /// The prefix means nothing any more.
    Delete {
        /// A host is told as the prefix of full length.
        net: IpNet,
        /// What it meant.
        old: Claim,
    },
}

/// Why a change is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// What is there comes from a stronger source (upsert), or not from this one (delete): nothing changed.
    SourceRefused,
    /// What is there is the same already.
    Same,
    /// It is stored, but a host entry for that address shadows it; or it was shadowed when it went.
    Shadowed,
    /// The host and the CIDR of full length mean the same, so nothing changes for the datapath.
    TwinIsSame,
    /// There was nothing to delete.
    Unknown,
}

/// An agent's ipcache.
#[derive(Debug, Clone, Default)]
pub struct AgentIpcache {
    era: Era,
    claims: BTreeMap<ObjectPrefix, Claim>,
    /// Prefixes by the identity that they mean.
    by_identity: BTreeMap<u32, BTreeSet<ObjectPrefix>>,
    /// Prefixes by the node that hosts them.
    by_host: BTreeMap<IpAddr, BTreeSet<ObjectPrefix>>,
}

impl Claim {
    /// What an agent makes of a pair that a source announced.
    #[must_use]
    pub fn of(entry: &IpEntry, source: Source) -> Self {
        let IpEntry { identity, host_ip, encryption_key, namespace, pod_name, named_ports, .. } = entry.clone();
        let has_metadata = !namespace.is_empty() || !pod_name.is_empty() || !named_ports.is_empty();
        let metadata = has_metadata.then_some(Metadata { namespace, pod_name, named_ports });
        Self { source, identity, host_ip, encryption_key, metadata }
    }

    /// Whether the datapath could tell the two apart by what shadowing looks at (`ipcache.go`: identity and host IP alone).
    fn means_the_same(&self, other: &Self) -> bool {
        (self.identity, self.host_ip) == (other.identity, other.host_ip)
    }

    fn meaning(&self) -> (u32, Option<IpAddr>) {
        (self.identity, self.host_ip)
    }
}

impl AgentIpcache {
    /// An empty one with the rules of an era.
    #[must_use]
    pub fn new(era: Era) -> Self {
        Self { era, ..Self::default() }
    }

    /// Takes in an entry (`IPCache.Upsert`).
    ///
    /// # Errors
    /// Why the datapath is not told; with [`Silence::Shadowed`] and [`Silence::TwinIsSame`] it is stored all the same.
    pub fn upsert(&mut self, prefix: ObjectPrefix, claim: Claim) -> Result<Notification, Silence> {
        let old = self.claims.get(&prefix);
        if old.is_some_and(|old| !self.era.may_overwrite(claim.source, old.source)) {
            return Err(Silence::SourceRefused);
        }
        // the agents of the seeds had no such check and told their listeners again
        if self.era == Era::Current && old == Some(&claim) {
            return Err(Silence::Same);
        }
        let told = match (old, self.twin(prefix)) {
            (_, Some(_)) if !prefix.host => Err(Silence::Shadowed),
            (Some(old), _) => Ok(Some(old.meaning())),
            (None, Some(cidr)) if cidr.means_the_same(&claim) => Err(Silence::TwinIsSame),
            (None, Some(cidr)) => Ok(Some(cidr.meaning())),
            (None, None) => Ok(None),
        };
        self.forget(prefix);
        self.by_identity.entry(claim.identity).or_default().insert(prefix);
        if let Some(host_ip) = claim.host_ip {
            self.by_host.entry(host_ip).or_default().insert(prefix);
        }
        self.claims.insert(prefix, claim.clone());
        told.map(|old| Notification::Upsert { net: prefix.net, old, new: claim })
    }

    /// Takes an entry away (`IPCache.Delete`): only its own source may.
    ///
    /// # Errors
    /// Why the datapath is not told.
    pub fn delete(&mut self, prefix: ObjectPrefix, source: Source) -> Result<Notification, Silence> {
        match self.claims.get(&prefix) {
            None => return Err(Silence::Unknown),
            Some(old) if old.source != source => return Err(Silence::SourceRefused),
            Some(_) => {}
        }
        let old = self.forget(prefix).ok_or(Silence::Unknown)?;
        match self.twin(prefix) {
            None => Ok(Notification::Delete { net: prefix.net, old }),
            Some(_) if !prefix.host => Err(Silence::Shadowed),
            Some(cidr) if cidr.means_the_same(&old) => Err(Silence::TwinIsSame),
            Some(cidr) => Ok(Notification::Upsert { net: prefix.net, old: Some(old.meaning()), new: cidr.clone() }),
        }
    }

    /// What a new listener is told: everything but what is shadowed (`DumpToListener`).
    pub fn dump(&self) -> impl Iterator<Item = (IpNet, &Claim)> {
        self.claims.iter().filter(|(prefix, _)| !self.is_shadowed(**prefix)).map(|(prefix, claim)| (prefix.net, claim))
    }

    /// Whether a host entry stands before this CIDR of full length.
    #[must_use]
    pub fn is_shadowed(&self, prefix: ObjectPrefix) -> bool {
        !prefix.host && self.twin(prefix).is_some()
    }

    /// The entry for an address: the host, else the longest prefix (`LookupByIP`, and the datapath's trie).
    #[must_use]
    pub fn lookup(&self, ip: IpAddr) -> Option<(ObjectPrefix, &Claim)> {
        let full = IpNet::from(ip).prefix_len();
        (0..=full)
            .rev()
            .find_map(|length| {
                let net = IpNet::new(ip, length).ok()?.trunc();
                [true, false].into_iter().find_map(|host| self.claims.get_key_value(&ObjectPrefix { net, host }))
            })
            .map(|(prefix, claim)| (*prefix, claim))
    }

    /// What means an identity (`LookupByIdentity`).
    pub fn by_identity(&self, identity: u32) -> impl Iterator<Item = ObjectPrefix> {
        self.by_identity.get(&identity).into_iter().flatten().copied()
    }

    /// What a node hosts (`LookupByHostRLocked`).
    pub fn by_host(&self, host_ip: IpAddr) -> impl Iterator<Item = ObjectPrefix> {
        self.by_host.get(&host_ip).into_iter().flatten().copied()
    }

    /// The host of a CIDR of full length, or that CIDR of a host.
    fn twin(&self, prefix: ObjectPrefix) -> Option<&Claim> {
        let is_full = prefix.net.prefix_len() == prefix.net.max_prefix_len();
        self.claims.get(&ObjectPrefix { host: !prefix.host, ..prefix }).filter(|_| is_full)
    }

    fn forget(&mut self, prefix: ObjectPrefix) -> Option<Claim> {
        let old = self.claims.remove(&prefix)?;
        take(&mut self.by_identity, &old.identity, prefix);
        if let Some(host_ip) = &old.host_ip {
            take(&mut self.by_host, host_ip, prefix);
        }
        Some(old)
    }
}

/// Takes a prefix out of a reverse index, which keeps no empty sets.
fn take<K: Ord>(index: &mut BTreeMap<K, BTreeSet<ObjectPrefix>>, key: &K, prefix: ObjectPrefix) {
    if let Some(prefixes) = index.get_mut(key) {
        prefixes.remove(&prefix);
        if prefixes.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
