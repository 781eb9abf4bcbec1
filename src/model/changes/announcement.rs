//! What the change stream is told of one change: the bytes before and after it, from which objects are decoded where a reader asks.

use std::fmt;
use std::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::model::{DeleteReason, EntryKey, Object, Record, Revision, Sequence};

/// What decodes usable bytes of a key.
type Decode = fn(&EntryKey, &Arc<[u8]>) -> Option<Arc<Object>>;

/// Records that are packed together, of which each has a row.
pub trait Rows: Send + Sync {
    /// The record of a row, without its object.
    fn record(self: Arc<Self>, row: usize) -> Record;
}

/// One version of a key: its bytes, when it came, and what it means. The object may take many times the room of the bytes, so it is kept only
/// until [`Announcement::let_objects_go`], and decoded again for later readers.
pub struct Version {
    whole: OnceLock<VersionBytes>,
    /// Where it is packed; gone once it is whole.
    packed: Mutex<Option<(Arc<dyn Rows>, usize)>>,
    /// How many bytes it has, or may have at most while it is packed.
    byte_count: usize,
    decode: Decode,
    decoded: Mutex<Decoded>,
}

/// The bytes of a version, and its place in our order.
#[derive(Debug, Clone, Default)]
pub struct VersionBytes {
    /// The bytes exactly as they came, usable or not.
    pub value: Arc<[u8]>,
    /// Our sequence when the key appeared.
    pub create_sequence: Sequence,
    /// Our sequence when it got these bytes.
    pub last_sequence: Sequence,
    /// How many times the key had changed then since it appeared, starting with 1.
    pub version: u64,
    /// The last bytes that could be used: mostly `value`. `None` where no usable bytes ever came, and where there are none at all.
    usable: Option<Arc<[u8]>>,
}

/// What is at hand of an object.
#[derive(Debug, Clone)]
enum Decoded {
    /// It has no bytes to be decoded from.
    Fixed(Arc<Object>),
    /// It came with the change.
    Kept(Arc<Object>),
    /// Somebody may have it.
    Seen(Weak<Object>),
}

/// One change, as it is told to streams.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// Its place in our order.
    pub sequence: Sequence,
    /// The key that changed.
    pub key: EntryKey,
    /// What it was before; `None` where it was not there.
    pub old: Option<Version>,
    /// What it is now; `None` where it is gone.
    pub new: Option<Version>,
    /// The source's revision of the change, where there is one.
    pub revision: Option<Revision>,
    /// Our sequence of the key's change before this one, if it has one.
    pub replaces: Option<Sequence>,
    /// Set where the key is gone.
    pub deleted: Option<DeleteReason>,
}

impl VersionBytes {
    fn of(record: &Record) -> Self {
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
    /// A record as it is now, with what decodes its bytes.
    #[must_use]
    pub fn of(record: &Record, decode: Decode) -> Self {
        let decoded = record.object.as_ref().map_or_else(|| Decoded::Seen(Weak::new()), |object| Decoded::Kept(Arc::clone(object)));
        Self::whole(VersionBytes::of(record), decode, decoded)
    }

    /// A packed record of so many bytes at most, whose rows are kept until its bytes are asked for: a holder that keeps it for long should ask.
    #[must_use]
    pub fn packed(rows: Arc<dyn Rows>, row: usize, byte_count: usize, decode: Decode) -> Self {
        let (packed, decoded) = (Mutex::new(Some((rows, row))), Mutex::new(Decoded::Seen(Weak::new())));
        Self { whole: OnceLock::new(), packed, byte_count, decode, decoded }
    }

    /// An object that was made here and has no bytes, so that it is kept itself and counts like bytes.
    #[must_use]
    pub fn made_here(object: Arc<Object>) -> Self {
        let byte_count = object.footprint();
        Self { byte_count, ..Self::whole(VersionBytes::default(), |_, _| None, Decoded::Fixed(object)) }
    }

    /// Bytes that mean nothing to the views.
    #[must_use]
    pub fn bare(value: Arc<[u8]>, create_sequence: Sequence, last_sequence: Sequence, version: u64) -> Self {
        let bytes = VersionBytes { value, create_sequence, last_sequence, version, usable: None };
        Self::whole(bytes, |_, _| None, Decoded::Seen(Weak::new()))
    }

    fn whole(whole: VersionBytes, decode: Decode, decoded: Decoded) -> Self {
        let byte_count = whole.byte_count();
        Self { whole: OnceLock::from(whole), packed: Mutex::default(), byte_count, decode, decoded: Mutex::new(decoded) }
    }

    /// The bytes, unpacked where they are not at hand.
    #[must_use]
    pub fn bytes(&self) -> &VersionBytes {
        if let Some(whole) = self.whole.get() {
            return whole;
        }
        let mut packed = self.place();
        // it is packed until it is whole
        self.whole.get_or_init(|| packed.take().map_or_else(VersionBytes::default, |(rows, row)| VersionBytes::of(&rows.record(row))))
    }

    /// What it means; `None` where no usable bytes ever came. Whoever asks while somebody has the object gets that one.
    fn object(&self, key: &EntryKey) -> Option<Arc<Object>> {
        let mut decoded = self.decoded();
        match &*decoded {
            Decoded::Fixed(object) | Decoded::Kept(object) => Some(Arc::clone(object)),
            Decoded::Seen(seen) => seen.upgrade().or_else(|| {
                let object = (self.decode)(key, self.bytes().usable.as_ref()?)?;
                *decoded = Decoded::Seen(Arc::downgrade(&object));
                Some(object)
            }),
        }
    }

    fn place(&self) -> MutexGuard<'_, Option<(Arc<dyn Rows>, usize)>> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decoded(&self) -> MutexGuard<'_, Decoded> {
        self.decoded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Version {
    fn clone(&self) -> Self {
        let decoded = Mutex::new(self.decoded().clone());
        // it becomes whole while its place is held
        let packed = self.place();
        Self { whole: self.whole.clone(), packed: Mutex::new(packed.clone()), decoded, ..*self }
    }
}

impl fmt::Debug for Version {
    /// Decodes nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Version").field(&self.whole).field(&*self.decoded()).finish()
    }
}

impl Announcement {
    /// What the key meant before; `None` where it was not there or not usable. Decodes where the object is not at hand.
    #[must_use]
    pub fn old_object(&self) -> Option<Arc<Object>> {
        self.old.as_ref()?.object(&self.key)
    }

    /// What the key means now; `None` where it is gone or was never usable. Decodes where the object is not at hand.
    #[must_use]
    pub fn new_object(&self) -> Option<Arc<Object>> {
        self.new.as_ref()?.object(&self.key)
    }

    /// How much room it takes without its objects. What it shares with others counts for each.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        size_of::<Self>() + self.key.name.len() + self.versions().map(|version| version.byte_count).sum::<usize>()
    }

    /// About how much room the objects take that it keeps.
    #[must_use]
    pub fn object_bytes(&self) -> usize {
        let kept = self.versions().map(|version| match &*version.decoded() {
            Decoded::Kept(object) => object.footprint(),
            Decoded::Fixed(_) | Decoded::Seen(_) => 0,
        });
        kept.sum()
    }

    /// Keeps no packed rows from now on.
    pub fn let_rows_go(&self) {
        for version in self.versions() {
            let _ = version.bytes();
        }
    }

    /// Keeps no objects from now on.
    pub fn let_objects_go(&self) {
        for version in self.versions() {
            let mut decoded = version.decoded();
            if matches!(&*decoded, Decoded::Kept(_)) {
                *decoded = Decoded::Seen(Weak::new());
            }
        }
    }

    fn versions(&self) -> impl Iterator<Item = &Version> {
        self.old.iter().chain(&self.new)
    }
}

impl PartialEq for Announcement {
    /// By what the versions mean.
    fn eq(&self, other: &Self) -> bool {
        let plain = |one: &Self| (one.sequence, one.revision, one.replaces, one.deleted);
        plain(self) == plain(other)
            && self.key == other.key
            && self.old_object() == other.old_object()
            && self.new_object() == other.new_object()
    }
}
