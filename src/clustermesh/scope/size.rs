//! Compares the size of the keys that are read with the limits of their cluster, and splits pages
//! so that decoding needs little memory at a time.

use std::collections::BTreeMap;

use super::super::connection_error::ConnectionError;
use super::super::resync::Input;
use super::ScopeTask;
use crate::commit::MirrorSnapshot;
use crate::model::{EntryKey, Kind, Object, Scope, ScopeSize, Size};
use crate::wire::{self, keys};
use cilium_kvstore::{ChangedKeys, Event, KeyValue, Page};

/// Number of raw bytes of a page that are decoded at a time, unless a single value is larger. A
/// page of Cilium's 256 keys has about 100 KiB; a page of large values has 32 MiB and up to ten
/// times that when decoded.
const DECODE_BYTES: u64 = 1 << 20;

/// Estimated number of decoded bytes per raw byte of a value. The shortest list item has 2 bytes
/// and uses 24 when decoded, but few values consist of such items.
const DECODED_BYTES_FACTOR: u64 = 8;

impl ScopeTask<'_> {
    /// Feeds a page to the state machine in parts of at most [`DECODE_BYTES`].
    pub(super) async fn feed_page(&mut self, page: Page) -> Result<(), ConnectionError> {
        let (revision, total_count) = (page.revision, page.total_count);
        let (mut part, mut bytes) = (Vec::new(), 0);
        for key_value in page.key_values {
            bytes += raw_bytes(&key_value);
            if bytes > DECODE_BYTES && !part.is_empty() {
                let key_values = std::mem::take(&mut part);
                self.feed(Input::Page(Page { revision, key_values, total_count })).await?;
                bytes = raw_bytes(&key_value);
            }
            part.push(key_value);
        }
        self.feed(Input::Page(Page { revision, key_values: part, total_count })).await?;
        Ok(())
    }

    /// Adds a page of a list to the count. Returns whether the page has to wait for the end of the
    /// list, because the mirror already has too many keys or bytes of the cluster.
    pub(super) async fn check_page_size(&mut self, page: &Page) -> Result<bool, ConnectionError> {
        let size = self.size_of(page.key_values.iter().collect()).await;
        if self.context.size_tracker.try_add(self.scope.kind, size, page.total_count).is_err() {
            self.state.deliver(&self.context.commands).await?;
            self.count_mirror().await?;
            self.context.size_tracker.try_add(self.scope.kind, size, page.total_count)?;
        }
        if !self.context.size_tracker.exceeds_listing_limits() {
            return Ok(false);
        }
        self.state.deliver(&self.context.commands).await?;
        self.count_mirror().await?;
        Ok(self.context.size_tracker.exceeds_listing_limits())
    }

    /// Adds to the count the keys that were put while there was no connection.
    pub(super) async fn add_unchecked(&self, changed: Option<&ChangedKeys>) {
        let size = self.size_of(changed.iter().flat_map(|changed| &changed.puts).collect()).await;
        self.context.size_tracker.add_unchecked(self.scope.kind, size);
    }

    /// Adds changes to the count. Looks up the values that they replace only if the upper bound
    /// exceeds a limit.
    pub(super) async fn check_changes_size(&self, events: &[Event]) -> Result<(), ConnectionError> {
        let puts = events.iter().filter_map(|event| if let Event::Put(put) = event { Some(put) } else { None });
        if self.context.size_tracker.try_add(self.scope.kind, self.size_of(puts.collect()).await, 0).is_ok() {
            return Ok(());
        }
        self.count_mirror().await?;
        let mirror = self.applied_mirror().await;
        let mut after: BTreeMap<EntryKey, Option<Size>> = BTreeMap::new();
        for event in events {
            let (key, size) = match event {
                Event::Put(put) => (&put.key, Some(self.size_of(vec![put]).await)),
                Event::Delete { key, .. } => (key, None),
            };
            if let Some(entry_key) = self.entry_key(key) {
                after.insert(entry_key, size);
            }
        }
        let growth = |(key, size): (&EntryKey, &Option<Size>)| match (mirror.view.record(key), size) {
            (_, None) => Size::default(),
            (None, Some(size)) => *size,
            (Some(record), Some(size)) => {
                let derived = record.object.as_deref().and_then(Object::as_node).map_or(0, |node| node.entry_count_max() as u64);
                let key_length = keys::watched_prefix(key.kind, &key.cluster, self.source.info.cached).len() + key.name.len();
                let old = Size { keys: 1 + derived, bytes: (key_length + record.value.len()) as u64 };
                Size { keys: size.keys.saturating_sub(old.keys), bytes: size.bytes.saturating_sub(old.bytes) }
            }
        };
        Ok(self.context.size_tracker.try_add(self.scope.kind, after.iter().map(growth).sum(), 0)?)
    }

    /// Returns the size of key-value pairs. Each ipcache entry that is derived from a node counts
    /// as a key.
    async fn size_of(&self, key_values: Vec<&KeyValue>) -> Size {
        let mut size = Size::default();
        for key_value in key_values {
            let mut keys = 1;
            if self.scope.kind == Kind::Node {
                // nodes are decoded twice, here and when they are applied: they are few and seldom
                // change
                let _budget = self.context.decoded.reserve(key_value.value.len() as u64 * DECODED_BYTES_FACTOR).await;
                keys += wire::node_entry_count(&key_value.value) as u64;
            }
            size = size + Size { keys, bytes: raw_bytes(key_value) };
        }
        size
    }

    /// Sets the revision that the mirror will reach for this kind.
    pub(super) fn update_expected_revision(&self) {
        self.context.size_tracker.set_expected_revision(self.scope.kind, self.state.resync.cursor().map(|cursor| cursor.revision));
    }

    /// Counts the cluster's keys and bytes in the mirror.
    async fn count_mirror(&self) -> Result<(), ConnectionError> {
        let (cluster, cached) = (self.scope.cluster.clone(), self.source.info.cached);
        let size_tracker = &self.context.size_tracker;
        let is_applied = |snapshot: &MirrorSnapshot| {
            size_tracker.is_applied(|kind| Some(snapshot.view.cursor(&Scope { cluster: cluster.clone(), kind })?.revision))
        };
        let mirror = self.context.mirror.wait_for(is_applied).await;
        let count = move || {
            Kind::ALL.map(|kind| {
                let prefix = keys::watched_prefix(kind, &cluster, cached).len() as u64;
                let with_prefix = |size: Size| Size { bytes: size.bytes + size.keys * prefix, ..size };
                let size_of = |kind| mirror.view.scope_size(&Scope { cluster: cluster.clone(), kind });
                let ScopeSize { confirmed, all } = size_of(kind);
                // derived entries have no bytes at the source. They are never confirmed themselves,
                // so all of them count
                let derived = Size { keys: if kind == Kind::Node { size_of(Kind::NodeIp).all.keys } else { 0 }, bytes: 0 };
                ScopeSize { confirmed: with_prefix(confirmed) + derived, all: with_prefix(all) + derived }
            })
        };
        // takes a second for a million keys
        let sizes = tokio::task::spawn_blocking(count).await.map_err(|_| ConnectionError::Stopping)?;
        size_tracker.set_counted(sizes);
        Ok(())
    }
}

/// Returns the estimated size of an input when it is decoded.
pub(super) fn decoded_bytes(input: &Input) -> u64 {
    let value_bytes = |put: &KeyValue| put.value.len() as u64 * DECODED_BYTES_FACTOR;
    match input {
        Input::Page(page) => page.key_values.iter().map(value_bytes).sum(),
        Input::Changes { changed: Some(changed), .. } => changed.puts.iter().map(value_bytes).sum(),
        Input::Events { events, .. } => {
            let event_bytes = |event: &Event| if let Event::Put(put) = event { value_bytes(put) } else { 0 };
            events.iter().map(event_bytes).sum()
        }
        _ => 0,
    }
}

fn raw_bytes(key_value: &KeyValue) -> u64 {
    (key_value.key.len() + key_value.value.len()) as u64
}
