//! The options of an allocator, with Cilium's defaults (`pkg/allocator`, `AllocatorOption`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::backend::{Id, IdRange};
use super::event::Event;
use super::key::AllocatorKey;

/// Checks a number, and where it comes rather than goes its key too; the reason if it is refused.
#[derive(Clone)]
pub struct Validator(Arc<Check>);

/// What a validator calls.
type Check = dyn Fn(Id, Option<&AllocatorKey>) -> Result<(), String> + Send + Sync;

impl Validator {
    /// A check of one's own.
    pub fn new(check: impl Fn(Id, Option<&AllocatorKey>) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    /// What an agent demands of a remote cluster's numbers: that they are of its range, and that their labels name it
    /// (`pkg/identity/cache/allocator.go`).
    #[must_use]
    pub fn remote(range: IdRange, label: &'static str, cluster: String) -> Self {
        Self::new(move |id, key| {
            if !range.contains(id) {
                return Err(format!("identity {id} is outside {} to {} of cluster {cluster}", range.min(), range.max()));
            }
            match key.map(|key| key.label(label)) {
                None => Ok(()),
                Some(Some(named)) if named == cluster => Ok(()),
                Some(Some(named)) => Err(format!("label {label} is {named:?}, expected {cluster:?}")),
                Some(None) => Err(format!("label {label} is missing")),
            }
        })
    }

    pub(super) fn check(&self, id: Id, key: Option<&AllocatorKey>) -> Result<(), String> {
        (self.0)(id, key)
    }
}

impl fmt::Debug for Validator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Validator")
    }
}

/// How an allocator works.
#[derive(Debug, Clone)]
pub struct AllocatorOptions {
    /// The numbers to choose from (`WithMin`, `WithMax`).
    pub range: IdRange,
    /// Bits that every chosen number gets (`WithPrefixMask`). An agent's are those of its cluster's id, which the numbers of its range
    /// have anyway.
    pub prefix_mask: u64,
    /// Whether a number that goes from the store while it is used here is written again at once (`WithMasterKeyProtection`).
    pub master_key_protection: bool,
    /// How often all numbers in use are looked at in the store; `None` for never (`WithoutGC`). Lost references are written again without.
    /// 5 minutes: `--identity-allocation-sync-interval`.
    pub sync_interval: Option<Duration>,
    /// Who wants to know what comes and goes (`WithEvents`). It must be read, and not by who waits for an allocation: a full channel pauses the copy,
    /// and a new number waits for it.
    pub events: Option<mpsc::Sender<Event>>,
    /// What may not enter the copy.
    pub validator: Option<Validator>,
    /// How often an allocation is tried (`maxAllocAttempts`).
    pub attempts_max: u32,
    /// Half of the wait before the second attempt; each further one waits twice as long (`backoffTemplate`).
    pub backoff: Duration,
    /// How long an allocation may take with all its attempts (`--identity-allocation-timeout`).
    pub allocation_max: Duration,
    /// How long one question to the store may take (`pkg/allocator`: the time-out of event handlers).
    pub operation_max: Duration,
}

impl Default for AllocatorOptions {
    fn default() -> Self {
        Self {
            range: IdRange::ALL,
            prefix_mask: 0,
            master_key_protection: false,
            sync_interval: Some(Duration::from_mins(5)),
            events: None,
            validator: None,
            attempts_max: 16,
            backoff: Duration::from_millis(20),
            allocation_max: Duration::from_mins(2),
            operation_max: Duration::from_secs(10),
        }
    }
}

/// Options that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the mask {mask:#x} would give two of the numbers from {} to {} the same value", range.min(), range.max())]
pub struct InvalidOptions {
    mask: u64,
    range: IdRange,
}

impl AllocatorOptions {
    /// Checks that a mask keeps different numbers different: no bit of it is one that the range's numbers differ in.
    pub(super) fn check(&self) -> Result<(), InvalidOptions> {
        let differing = self.range.min().number() ^ self.range.max().number();
        let varying = differing.checked_ilog2().map_or(0, |bit| u64::MAX >> (63 - bit));
        if self.prefix_mask & varying == 0 { Ok(()) } else { Err(InvalidOptions { mask: self.prefix_mask, range: self.range }) }
    }

    /// A chosen number with the mask's bits.
    pub(super) fn masked(&self, chosen: Id) -> Id {
        Id::new(chosen.number() | self.prefix_mask).unwrap_or(chosen)
    }

    /// The number of the range that another was made of.
    pub(super) fn unmasked(&self, id: Id) -> Id {
        let own = id.number() & self.prefix_mask == self.prefix_mask;
        match Id::new(id.number() & !self.prefix_mask) {
            Some(unmasked) if own && !self.range.contains(id) => unmasked,
            _ => id,
        }
    }
}
