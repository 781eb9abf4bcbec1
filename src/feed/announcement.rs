//! Announcements: changes in the form in which the feed passes them to subscribers. They hold the
//! bytes before and after the change, and decode the objects on demand.

use std::fmt;
use std::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::model::{DeleteReason, EntryKey, Object, Record, Revision, Sequence};
use crate::pack::Chunk;
use crate::wire;

/// One version of a key: its bytes, its sequences, and its object. An object may use many times the
/// memory of its bytes, so it is retained only until [`Announcement::release_objects`] and decoded
/// again for later readers.
pub struct Version {
    bytes: OnceLock<VersionBytes>,
    /// Chunk and row of the record, until the version is unpacked.
    packed: Mutex<Option<(Chunk, usize)>>,
    /// Number of bytes, or an upper bound while the version is packed.
    byte_count: usize,
    cached: Mutex<CachedObject>,
}

/// Bytes of a version, and its sequences.
#[derive(Debug, Clone, Default)]
pub struct VersionBytes {
    /// Raw bytes as in the source, usable or not.
    pub value: Arc<[u8]>,
    /// Sequence of the change that created the key.
    pub create_sequence: Sequence,
    /// Sequence of the change that set these bytes.
    pub last_sequence: Sequence,
    /// Number of changes of the key up to this version, starting with 1.
    pub version: u64,
    /// Last usable bytes, usually `value`. `None` if the key never had usable bytes, or if meshkeep
    /// created the object itself.
    usable: Option<Arc<[u8]>>,
}

#[derive(Debug, Clone)]
enum CachedObject {
    /// The object has no bytes to decode it from.
    Permanent(Arc<Object>),
    /// The object came with the change.
    Retained(Arc<Object>),
    /// A reader may still hold the object.
    Shared(Weak<Object>),
}

/// One change, as streams receive it.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// Sequence of the change.
    pub sequence: Sequence,
    /// The key that changed.
    pub key: EntryKey,
    /// State before the change; `None` if the key did not exist.
    pub old: Option<Version>,
    /// State after the change; `None` if the key was deleted.
    pub new: Option<Version>,
    /// The source's revision of the change, if it has one.
    pub revision: Option<Revision>,
    /// Sequence of the key's previous change, if there is one.
    pub replaces: Option<Sequence>,
    /// Reason of the deletion, if the key was deleted.
    pub deleted: Option<DeleteReason>,
}

impl VersionBytes {
    fn from_record(record: &Record) -> Self {
        let usable = if record.rejection.is_none() { Some(&record.value) } else { record.good_value.as_ref() };
        Self {
            value: Arc::clone(&record.value),
            create_sequence: record.create_sequence,
            last_sequence: record.last_sequence,
            version: record.version,
            usable: usable.cloned(),
        }
    }

    fn byte_count(&self) -> usize {
        let usable = self.usable.as_ref().filter(|usable| !Arc::ptr_eq(usable, &self.value));
        self.value.len() + usable.map_or(0, |usable| usable.len())
    }
}

impl Version {
    /// Creates a version from a record.
    #[must_use]
    pub fn from_record(record: &Record) -> Self {
        let cached =
            record.object.as_ref().map_or_else(|| CachedObject::Shared(Weak::new()), |object| CachedObject::Retained(Arc::clone(object)));
        Self::from_bytes(VersionBytes::from_record(record), cached)
    }

    /// Creates a version from a packed row of at most `byte_count` bytes. The chunk stays in memory
    /// until [`Announcement::release_chunks`] or the first request for the bytes.
    #[must_use]
    pub fn from_packed(chunk: Chunk, row: usize, byte_count: usize) -> Self {
        let (packed, cached) = (Mutex::new(Some((chunk, row))), Mutex::new(CachedObject::Shared(Weak::new())));
        Self { bytes: OnceLock::new(), packed, byte_count, cached }
    }

    /// Creates a version of an object that meshkeep created itself and that has no bytes. The
    /// object is kept for good, and its footprint counts as the version's bytes.
    #[must_use]
    pub fn of_own_object(object: Arc<Object>) -> Self {
        let byte_count = object.footprint();
        Self { byte_count, ..Self::from_bytes(VersionBytes::default(), CachedObject::Permanent(object)) }
    }

    /// Creates a version whose bytes have no object.
    #[must_use]
    pub fn without_object(value: Arc<[u8]>, create_sequence: Sequence, last_sequence: Sequence, version: u64) -> Self {
        let bytes = VersionBytes { value, create_sequence, last_sequence, version, usable: None };
        Self::from_bytes(bytes, CachedObject::Shared(Weak::new()))
    }

    fn from_bytes(bytes: VersionBytes, cached: CachedObject) -> Self {
        let byte_count = bytes.byte_count();
        Self { bytes: OnceLock::from(bytes), packed: Mutex::default(), byte_count, cached: Mutex::new(cached) }
    }

    /// Returns the bytes. Unpacks them on the first call.
    #[must_use]
    pub fn bytes(&self) -> &VersionBytes {
        if let Some(bytes) = self.bytes.get() {
            return bytes;
        }
        let mut packed = self.packed_row();
        // the lock is held until the bytes are set, so that nobody sees a version with neither
        self.bytes
            .get_or_init(|| packed.take().map_or_else(VersionBytes::default, |(chunk, row)| VersionBytes::from_record(&chunk.record(row))))
    }

    /// Returns the object; `None` if the key never had usable bytes. Readers share the object while
    /// one of them holds it.
    fn object(&self, key: &EntryKey) -> Option<Arc<Object>> {
        let mut cached = self.cached();
        match &*cached {
            CachedObject::Permanent(object) | CachedObject::Retained(object) => Some(Arc::clone(object)),
            CachedObject::Shared(weak) => weak.upgrade().or_else(|| {
                let object = wire::decode_accepted(key, self.bytes().usable.as_ref()?).map(Arc::new)?;
                *cached = CachedObject::Shared(Arc::downgrade(&object));
                Some(object)
            }),
        }
    }

    fn packed_row(&self) -> MutexGuard<'_, Option<(Chunk, usize)>> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cached(&self) -> MutexGuard<'_, CachedObject> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Version {
    fn clone(&self) -> Self {
        let cached = Mutex::new(self.cached().clone());
        // `bytes()` unpacks while it holds this lock, so the clone has the bytes or the packed row
        let packed = self.packed_row();
        Self { bytes: self.bytes.clone(), packed: Mutex::new(packed.clone()), cached, ..*self }
    }
}

impl fmt::Debug for Version {
    /// Formats without decoding.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Version").field(&self.bytes).field(&*self.cached()).finish()
    }
}

impl Announcement {
    /// Returns the object before the change; `None` if the key did not exist or had no usable
    /// bytes. Decodes it if necessary.
    #[must_use]
    pub fn old_object(&self) -> Option<Arc<Object>> {
        self.old.as_ref()?.object(&self.key)
    }

    /// Returns the object after the change; `None` if the key was deleted or never had usable
    /// bytes. Decodes it if necessary.
    #[must_use]
    pub fn new_object(&self) -> Option<Arc<Object>> {
        self.new.as_ref()?.object(&self.key)
    }

    /// Returns the memory in use without the objects, in bytes. Memory that is shared with others
    /// counts in full.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        size_of::<Self>() + self.key.name.len() + self.versions().map(|version| version.byte_count).sum::<usize>()
    }

    /// Returns the approximate memory of the retained objects, in bytes.
    #[must_use]
    pub fn object_bytes(&self) -> usize {
        let retained = self.versions().map(|version| match &*version.cached() {
            CachedObject::Retained(object) => object.footprint(),
            CachedObject::Permanent(_) | CachedObject::Shared(_) => 0,
        });
        retained.sum()
    }

    /// Unpacks the versions, so that they no longer keep chunks in memory.
    pub fn release_chunks(&self) {
        for version in self.versions() {
            let _ = version.bytes();
        }
    }

    /// Releases the objects.
    pub fn release_objects(&self) {
        for version in self.versions() {
            let mut cached = version.cached();
            if matches!(&*cached, CachedObject::Retained(_)) {
                *cached = CachedObject::Shared(Weak::new());
            }
        }
    }

    fn versions(&self) -> impl Iterator<Item = &Version> {
        self.old.iter().chain(&self.new)
    }
}

impl PartialEq for Announcement {
    /// Compares the decoded versions.
    fn eq(&self, other: &Self) -> bool {
        let plain_fields = |one: &Self| (one.sequence, one.revision, one.replaces, one.deleted);
        plain_fields(self) == plain_fields(other)
            && self.key == other.key
            && self.old_object() == other.old_object()
            && self.new_object() == other.new_object()
    }
}
