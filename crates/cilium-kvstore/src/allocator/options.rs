//! Options of an allocator, with Cilium's defaults (`pkg/allocator`, `AllocatorOption`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::backend::{Id, IdRange};
use super::event::AllocatorEvent;
use super::key::AllocatorKey;

/// Function that checks a number and, unless the number was deleted, its key. Returns the reason if
/// it refuses them.
#[derive(Clone)]
pub struct Validator(Arc<Check>);

type Check = dyn Fn(Id, Option<&AllocatorKey>) -> Result<(), String> + Send + Sync;

impl Validator {
    /// Creates a validator from a function.
    pub fn new(check: impl Fn(Id, Option<&AllocatorKey>) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    /// Creates the validator that agents use for a remote cluster's numbers: a number must be in
    /// the cluster's range, and its labels must name the cluster
    /// (`pkg/identity/cache/allocator.go`).
    #[must_use]
    pub fn remote(range: IdRange, label: &'static str, cluster: String) -> Self {
        Self::new(move |id, key| {
            if !range.contains(id) {
                return Err(format!("identity {id} is outside {} to {} of cluster {cluster}", range.min(), range.max()));
            }
            match key.map(|key| key.label(label)) {
                None => Ok(()),
                Some(Some(cluster_label)) if cluster_label == cluster => Ok(()),
                Some(Some(cluster_label)) => Err(format!("label {label} is {cluster_label:?}, expected {cluster:?}")),
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

/// Options of an [`Allocator`](super::Allocator).
#[derive(Debug, Clone)]
pub struct AllocatorOptions {
    /// Range of the numbers to choose from (`WithMin`, `WithMax`).
    pub range: IdRange,
    /// Bits that are set in every chosen number (`WithPrefixMask`). An agent uses the bits of its
    /// cluster id, which all numbers of its range contain anyway.
    pub prefix_mask: u64,
    /// True if a number that is in use on this node is written again at once when it is deleted
    /// from the store (`WithMasterKeyProtection`).
    pub master_key_protection: bool,
    /// Interval at which all numbers in use are checked in the store; `None` disables the periodic
    /// check (`WithoutGC`). Lost references are written again in either case. Default 5 minutes
    /// (`--identity-allocation-sync-interval`).
    pub sync_interval: Option<Duration>,
    /// Channel for changes of numbers (`WithEvents`). The task that reads it must not wait for an
    /// allocation: a full channel pauses the copy, and the allocation of a new number waits for the
    /// copy.
    pub events: Option<mpsc::Sender<AllocatorEvent>>,
    /// Check of the numbers that enter the copy.
    pub validator: Option<Validator>,
    /// Maximum attempts of an allocation (`maxAllocAttempts`).
    pub attempts_max: u32,
    /// Base of the waits between attempts (`backoffTemplate`). The wait before the second attempt
    /// is twice this value, and each further attempt doubles it.
    pub backoff: Duration,
    /// Maximum time of an allocation with all its attempts (`--identity-allocation-timeout`).
    pub allocation_max: Duration,
    /// Maximum time of one request to the store (`pkg/allocator`: the timeout of event handlers).
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

/// Error for a mask that does not fit the range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the mask {mask:#x} would give two of the numbers from {} to {} the same value", range.min(), range.max())]
pub struct InvalidOptions {
    mask: u64,
    range: IdRange,
}

impl AllocatorOptions {
    /// Checks that masked numbers stay different: the mask must not contain a bit in which numbers
    /// of the range differ.
    pub(super) fn check(&self) -> Result<(), InvalidOptions> {
        let differing = self.range.min().number() ^ self.range.max().number();
        let varying = differing.checked_ilog2().map_or(0, |bit| u64::MAX >> (63 - bit));
        if self.prefix_mask & varying == 0 { Ok(()) } else { Err(InvalidOptions { mask: self.prefix_mask, range: self.range }) }
    }

    /// Returns a chosen number with the mask's bits set.
    pub(super) fn masked(&self, chosen: Id) -> Id {
        Id::new(chosen.number() | self.prefix_mask).unwrap_or(chosen)
    }

    /// Returns the number in the range from which [`Self::masked`] made this number. A number that
    /// is not a masked number is returned unchanged.
    pub(super) fn unmasked(&self, id: Id) -> Id {
        let has_mask = id.number() & self.prefix_mask == self.prefix_mask;
        match Id::new(id.number() & !self.prefix_mask) {
            Some(unmasked) if has_mask && !self.range.contains(id) => unmasked,
            _ => id,
        }
    }
}
