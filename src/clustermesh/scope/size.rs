//! What is read of a kind, held against what its cluster may have.

use std::collections::BTreeMap;

use super::super::resync::Input;
use super::{AttemptError, ScopeTask};
use crate::commit::Published;
use crate::kvstore::{ChangedKeys, Event, KeyValue, Page};
use crate::model::{EntryKey, Kind, Scope, ScopeSize, Size};
use crate::wire::keys;

/// How many raw bytes of a page are decoded at one time, beside one value: a page of Cilium's 256 keys has some 100 KiB, and one of large values
/// 32 MiB, decoded ten times that.
const PIECE_BYTES: u64 = 1 << 20;

/// How much a value takes decoded, for each of its bytes: the shortest item of a list has 2 bytes and takes 24, which few values are full of.
const DECODED_BYTES_FACTOR: u64 = 8;

impl ScopeTask<'_> {
    /// Gives the state machine a page, piece by piece.
    pub(super) async fn feed_page(&mut self, page: Page) -> Result<(), AttemptError> {
        let (revision, total_count) = (page.revision, page.total_count);
        let (mut piece, mut bytes) = (Vec::new(), 0);
        for key_value in page.key_values {
            bytes += size_of(&key_value).bytes;
            if bytes > PIECE_BYTES && !piece.is_empty() {
                let key_values = std::mem::take(&mut piece);
                self.feed(Input::Page(Page { revision, key_values, total_count })).await?;
                bytes = size_of(&key_value).bytes;
            }
            piece.push(key_value);
        }
        self.feed(Input::Page(Page { revision, key_values: piece, total_count })).await?;
        Ok(())
    }

    /// Counts a page of a list; says whether it has to wait for the end of the list, because too much is held already.
    pub(super) async fn admit_page(&self, page: &Page) -> Result<bool, AttemptError> {
        let size = page.key_values.iter().map(size_of).sum();
        if self.surroundings.holdings.add(self.scope.kind, size, page.total_count).is_err() {
            self.count().await?;
            self.surroundings.holdings.add(self.scope.kind, size, page.total_count)?;
        }
        if !self.surroundings.holdings.is_crowded() {
            return Ok(false);
        }
        self.count().await?;
        Ok(self.surroundings.holdings.is_crowded())
    }

    /// Counts what was put while there was no connection.
    pub(super) fn add_unjudged(&self, changed: Option<&ChangedKeys>) {
        let size = changed.iter().flat_map(|changed| &changed.puts).map(size_of).sum();
        self.surroundings.holdings.add_unjudged(self.scope.kind, size);
    }

    /// Counts changes. Only where they may be too much is what they replace looked up.
    pub(super) async fn admit_changes(&self, events: &[Event]) -> Result<(), AttemptError> {
        let put = |event: &Event| if let Event::Put(put) = event { size_of(put) } else { Size::default() };
        if self.surroundings.holdings.add(self.scope.kind, events.iter().map(put).sum(), 0).is_ok() {
            return Ok(());
        }
        self.count().await?;
        let mirror = self.settled_mirror().await;
        let mut after: BTreeMap<EntryKey, (usize, u64)> = BTreeMap::new();
        for event in events {
            let (key, length) = match event {
                Event::Put(put) => (&put.key, put.value.len() as u64),
                Event::Delete { key, .. } => (key, 0),
            };
            if let Some(entry_key) = self.entry_key(key) {
                after.insert(entry_key, (key.len(), length));
            }
        }
        let grown = |(key, (key_length, length)): (&EntryKey, &(usize, u64))| match mirror.view.record(key) {
            Some(held) => Size { keys: 0, bytes: length.saturating_sub(held.value.len() as u64) },
            None if *length == 0 => Size::default(),
            None => Size { keys: 1, bytes: *key_length as u64 + length },
        };
        Ok(self.surroundings.holdings.add(self.scope.kind, after.iter().map(grown).sum(), 0)?)
    }

    /// Notes up to where the mirror will have this kind.
    pub(super) fn expect(&self) {
        self.surroundings.holdings.expect(self.scope.kind, self.memory.resync.cursor().map(|cursor| cursor.revision));
    }

    /// Counts what the mirror holds of the cluster.
    async fn count(&self) -> Result<(), AttemptError> {
        let (cluster, cached) = (self.scope.cluster.clone(), self.link.source.cached);
        let holdings = &self.surroundings.holdings;
        let is_settled =
            |view: &Published| holdings.is_settled(|kind| Some(view.view.cursor(&Scope { cluster: cluster.clone(), kind })?.revision));
        let mirror = self.surroundings.mirror.wait_for(is_settled).await;
        let count = move || {
            Kind::ALL.map(|kind| {
                let prefix = keys::watched_prefix(kind, &cluster, cached).len() as u64;
                let with_prefix = |size: Size| Size { bytes: size.bytes + size.keys * prefix, ..size };
                let ScopeSize { confirmed, all } = mirror.view.size_of(&Scope { cluster: cluster.clone(), kind });
                ScopeSize { confirmed: with_prefix(confirmed), all: with_prefix(all) }
            })
        };
        // a second for a million keys
        let sizes = tokio::task::spawn_blocking(count).await.map_err(|_| AttemptError::Stopping)?;
        holdings.counted(sizes);
        Ok(())
    }
}

/// About how many bytes an input takes while it is decoded.
pub(super) fn decoded_bytes(input: &Input) -> u64 {
    let of_value = |put: &KeyValue| put.value.len() as u64 * DECODED_BYTES_FACTOR;
    match input {
        Input::Page(page) => page.key_values.iter().map(of_value).sum(),
        Input::Changes { changed: Some(changed), .. } => changed.puts.iter().map(of_value).sum(),
        Input::Events { events, .. } => {
            let of_event = |event: &Event| if let Event::Put(put) = event { of_value(put) } else { 0 };
            events.iter().map(of_event).sum()
        }
        _ => 0,
    }
}

fn size_of(key_value: &KeyValue) -> Size {
    Size { keys: 1, bytes: (key_value.key.len() + key_value.value.len()) as u64 }
}
