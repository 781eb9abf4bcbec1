//! The keys at one revision: the newest, one that a list is read at page by page, or an earlier one that the newest changes lead back to.

use tonic::Status;

use super::face::Face;
use super::refusal;
use super::revisions::{revision, sequence};
use super::span::Span;
use crate::handle::{RawPast, RawPlace, Reading};
use crate::model::{RawRecord, Sequence};

/// The keys at one revision.
#[derive(Debug)]
pub(super) struct Moment {
    reading: Reading,
    /// What changed since that revision, as it was then.
    past: Option<RawPast>,
}

impl Face {
    /// The keys of spans at a revision; 0 and below is the newest. `reading` is the newest moment.
    pub(super) fn moment(&self, reading: &Reading, at: i64, holds: impl Fn(&[u8]) -> bool) -> Result<Moment, Status> {
        let head = revision(reading.position().sequence);
        if at > head {
            return Err(refusal::future_revision());
        }
        if at <= 0 || at == head {
            return Ok(Moment { reading: reading.clone(), past: None });
        }
        if let Some(reading) = self.pins.find(at) {
            return Ok(Moment { reading, past: None });
        }
        let past = reading.raw_past(sequence(at), |key| holds(key.as_bytes())).ok_or_else(refusal::compacted)?;
        Ok(Moment { reading: reading.clone(), past: Some(past) })
    }
}

impl Moment {
    /// What a key has.
    pub(super) fn get(&self, key: &str) -> Option<RawRecord> {
        match self.past.as_ref().and_then(|past| past.get(key)) {
            Some(then) => then.clone(),
            None => self.reading.raw(key).map(|place| place.record()),
        }
    }

    /// How many keys a span has.
    pub(super) fn count(&self, span: &Span) -> usize {
        if span.is_empty() {
            return 0;
        }
        if span.is_single {
            return usize::from(str::from_utf8(&span.start).is_ok_and(|key| self.get(key).is_some()));
        }
        let mut count = self.reading.raw_count(&span.start, span.end.as_deref());
        for (key, then) in self.past.iter().flatten().filter(|(key, _)| span.holds(key.as_bytes())) {
            count += usize::from(then.is_some());
            count -= usize::from(self.reading.raw(key).is_some());
        }
        count
    }

    /// Gives the keys of a span in order, those whose history passes a test, until `visit` refuses one. Without `values` they come without.
    pub(super) fn each(
        &self,
        span: &Span,
        values: bool,
        test: impl Fn(Sequence, Sequence) -> bool,
        mut visit: impl FnMut(RawRecord) -> bool,
    ) {
        if span.is_empty() {
            return;
        }
        let holds = |key: &str| span.holds(key.as_bytes());
        let mut past = self.past.iter().flatten().filter(|(key, _)| holds(key)).peekable();
        let then = |record: &RawRecord| test(record.create_sequence, record.last_sequence).then(|| record.clone());
        for place in self.reading.raw_from(&span.start) {
            if past.peek().is_some() {
                let key = place.key();
                while let Some((_, before)) = past.next_if(|(other, _)| **other < key) {
                    if before.as_ref().and_then(then).is_some_and(|record| !visit(record)) {
                        return;
                    }
                }
                if let Some((_, same)) = past.next_if(|(other, _)| **other == key) {
                    if same.as_ref().and_then(then).is_some_and(|record| !visit(record)) {
                        return;
                    }
                    continue;
                }
            }
            let (created, last, _) = place.history();
            if !test(created, last) {
                // where few pass, the end must be seen all the same
                if !holds(&place.key()) {
                    break;
                }
                continue;
            }
            let record = if values { place.record() } else { bare(&place) };
            if !span.is_not_behind(record.key.as_bytes()) {
                break;
            }
            if !visit(record) {
                return;
            }
        }
        for (_, gone_since) in past {
            if gone_since.as_ref().and_then(then).is_some_and(|record| !visit(record)) {
                return;
            }
        }
    }
}

fn bare(place: &RawPlace<'_>) -> RawRecord {
    let (create_sequence, last_sequence, version) = place.history();
    RawRecord { key: place.key(), value: std::sync::Arc::default(), create_sequence, last_sequence, version }
}
