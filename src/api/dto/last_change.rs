//! Conversion of the time of a change.

use crate::dto::objects::last_change::LastChange;
use crate::dto::text::rfc3339;
use crate::handle::Reading;
use crate::model::{ChangeTime, EntryKey, Record, Sequence};

impl From<Option<ChangeTime>> for LastChange {
    fn from(time: Option<ChangeTime>) -> Self {
        match time {
            None => Self::default(),
            Some(ChangeTime::At(time)) => Self { changed_at: Some(rfc3339(time)), ..Self::default() },
            Some(ChangeTime::Between(from, to)) => Self { changed_between: Some([rfc3339(from), rfc3339(to)]), ..Self::default() },
            Some(ChangeTime::FirstSeen(time)) => Self { first_seen_at: Some(rfc3339(time)), ..Self::default() },
        }
    }
}

impl LastChange {
    /// Returns the time of a key's change with this sequence.
    pub(crate) fn of(reading: &Reading, key: &EntryKey, sequence: Sequence) -> Self {
        reading.change_time(key, sequence).into()
    }

    /// Returns the time of a record's last change.
    pub(crate) fn of_record(reading: &Reading, record: &Record) -> Self {
        Self::of(reading, &record.key, record.last_sequence)
    }
}
