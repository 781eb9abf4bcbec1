//! The mirror behind a connection that breaks at any point, with a store that loses its newest
//! writes in a crash.

use super::*;

/// The mirror of one scope: state machine, view, and what the store has after a crash.
pub(super) struct FakeMirror {
    pub(super) resync: Resync,
    pub(super) view: View,
    /// Commands that the committer has not applied.
    queue: VecDeque<Command>,
    /// True while the committer applies a command only when the connection waits for it.
    pub(super) lags: bool,
    /// Snapshots that the store wrote, newest last.
    pub(super) stored: Vec<View>,
    pub(super) request: Option<Request>,
    /// Remaining pages of the list, in reverse order.
    pub(super) pages: Vec<Page>,
    pub(super) watch: Option<OpenWatch>,
    pub(super) connected: bool,
    pub(super) canaries: bool,
    /// Instant at which the etcd's clock was zero.
    pub(super) started: Instant,
}

pub(super) struct OpenWatch {
    /// Revision up to which etcd has sent events.
    sent_until: i64,
    /// Sent events that the mirror has not received.
    waiting: VecDeque<(i64, Vec<Event>)>,
    script: ScriptedWatch,
}

impl FakeMirror {
    pub(super) fn new(canaries: bool) -> Self {
        let view = View::starting_at(Sequence(0));
        Self {
            resync: Resync::new(scope(), None),
            stored: vec![view.clone()],
            view,
            queue: VecDeque::new(),
            lags: false,
            request: None,
            pages: Vec::new(),
            watch: None,
            connected: false,
            canaries,
            started: Instant::now(),
        }
    }

    pub(super) fn feed(&mut self, input: Input) {
        let step = self.resync.step(input);
        self.queue.extend(step.commands);
        if !self.lags {
            self.drain_queue();
        }
        if step.request.is_some() {
            self.request = step.request;
            self.pages.clear();
            self.watch = None;
        }
    }

    fn apply_next(&mut self) -> bool {
        let Some(command) = self.queue.pop_front() else { return false };
        self.view.apply(command, SystemTime::UNIX_EPOCH);
        self.stored.push(self.view.clone());
        true
    }

    pub(super) fn drain_queue(&mut self) {
        while self.apply_next() {}
    }

    /// Applies commands until the view has the cursor of the machine, like
    /// `ScopeTask::applied_mirror`.
    fn await_applied(&mut self) {
        while self.view.cursor(&scope()) != self.resync.cursor() {
            assert!(self.apply_next(), "the view never has the cursor of the machine");
        }
    }

    pub(super) fn connect(&mut self, etcd: &FakeEtcd) {
        self.connected = true;
        self.feed(Input::Connected(SourceInfo {
            etcd_cluster_id: EtcdClusterId(etcd.id),
            cached: etcd.cached,
            canaries: self.canaries,
            cluster_id: ClusterId(1),
            max_connected_clusters: MaxConnectedClusters::Clusters255,
        }));
    }

    /// Simulates `kill -9`: the store has lost its last `lost` writes, and the process starts from
    /// the remaining ones.
    pub(super) fn crash(&mut self, lost: usize) {
        self.queue.clear();
        let kept_count = self.stored.len() - lost.min(self.stored.len() - 1);
        self.stored.truncate(kept_count);
        let store = self.stored[kept_count - 1].clone();
        self.view = View::starting_at(Sequence(self.view.sequence().0 + 1_000));
        for record in store.in_scope(&scope()) {
            self.view.restore(Record { generation: 0, ..(*record).clone() });
        }
        let cursor = store.cursor(&scope()).cloned();
        if let Some(cursor) = &cursor {
            self.view.restore_cursor(scope(), cursor.clone());
        }
        self.resync = Resync::new(scope(), cursor);
        self.stored = vec![self.view.clone()];
        self.connected = false;
    }

    /// Performs one step of the current request. Returns false if there is nothing to do.
    pub(super) fn advance(&mut self, etcd: &FakeEtcd) -> bool {
        match self.request.clone() {
            None => return false,
            Some(Request::AwaitCanary) => match etcd.keys.get(etcd.canary()) {
                Some(canary) => self.feed(Input::Canary(canary.clone())),
                None => return false,
            },
            Some(Request::ReadTogether(keys)) => {
                let key_values = keys.iter().map(|key| etcd.keys.get(key).cloned()).collect();
                self.feed(Input::CurrentValues(key_values, Revision(etcd.revision)));
            }
            Some(Request::ReadAt(key, revision)) => self.feed(Input::PastValue(etcd.value_at(&key, revision))),
            Some(Request::ListChanges(after)) => {
                self.await_applied();
                let below = || etcd.keys.values().filter(|put| put.key.starts_with(etcd.prefix().as_bytes()));
                let puts: Vec<KeyValue> = below().filter(|put| put.mod_revision > after).cloned().collect();
                let is_known = |put: &&KeyValue| is_entry(&put.key) && self.served().contains_key(&name_of(&put.key));
                let new_count = puts.iter().filter(|put| !is_known(put)).count();
                let entry_count = (self.served().len() + new_count) as u64;
                let changed = ChangedKeys { revision: Revision(etcd.revision), total_count: below().count() as u64, puts };
                // more than four changes count as too many for one answer
                let changed = (changed.puts.len() <= 4).then_some(changed);
                self.feed(Input::Changes { changed, entry_count });
            }
            Some(Request::ListKeys(revision)) => {
                if revision.0 < etcd.compacted {
                    self.feed(Input::HistoryLost);
                    return true;
                }
                let keys: BTreeSet<&Vec<u8>> =
                    etcd.log.iter().filter(|(logged_at, _)| *logged_at <= revision.0).map(|(_, event)| key_of(event)).collect();
                let existing = keys
                    .into_iter()
                    .filter(|key| key.starts_with(etcd.prefix().as_bytes()) && matches!(etcd.value_at(key, revision), Ok(Some(_))));
                let listed: Vec<Vec<u8>> = existing.cloned().collect();
                self.await_applied();
                let entries: Vec<EntryKey> = self.view.in_scope(&scope()).map(|record| record.key.clone()).collect();
                let evidence = self.evidence(etcd, &entries);
                self.feed(Input::Keys { listed, entries, evidence });
            }
            Some(Request::List) => self.list(etcd),
            Some(Request::Compare) => {
                self.await_applied();
                let generation = self.view.scope(&scope()).map_or(0, |state| state.generation.into());
                let scope = scope();
                let unconfirmed = self.view.in_scope(&scope).filter(|record| record.generation < generation);
                let keys: Vec<EntryKey> = unconfirmed.map(|record| record.key.clone()).collect();
                let evidence = self.evidence(etcd, &keys);
                self.feed(Input::UnconfirmedKeys { keys, evidence });
            }
            Some(Request::Watch(after)) => return self.watch(etcd, after),
        }
        true
    }

    /// Returns the evidence of the source for the deletion of some keys.
    pub(super) fn evidence(&self, etcd: &FakeEtcd, keys: &[EntryKey]) -> DeleteEvidence {
        let lost =
            |key: &&EntryKey| self.view.record(key).is_some_and(|record| etcd.lease_life(record.source.lease) == LeaseLife::NotFound);
        let lost = keys.iter().filter(lost).cloned().collect();
        let writer_key = |key| if self.canaries { etcd.writer_key(key) } else { WriterKey::NotWritten };
        DeleteEvidence { config: writer_key(CONFIG), canary: writer_key(etcd.canary()), lost }
    }

    pub(super) fn list(&mut self, etcd: &FakeEtcd) {
        if self.pages.is_empty() {
            let puts: Vec<KeyValue> = etcd.keys.values().filter(|put| put.key.starts_with(etcd.prefix().as_bytes())).cloned().collect();
            let page = |key_values: &[KeyValue]| Page {
                revision: Revision(etcd.revision),
                key_values: key_values.to_vec(),
                total_count: puts.len() as u64,
            };
            self.pages = if puts.is_empty() { vec![page(&[])] } else { puts.chunks(3).map(page).rev().collect() };
        }
        let page = self.pages.pop().unwrap();
        let last = self.pages.is_empty();
        self.feed(Input::Page(page));
        if last {
            self.feed(Input::ListEnd);
        }
    }

    /// Performs one step of the watch: its creation or the next revision. Returns false if no
    /// events are left.
    pub(super) fn watch(&mut self, etcd: &FakeEtcd, after: Revision) -> bool {
        let is_new = self.watch.is_none();
        let watch = self.watch.get_or_insert_with(|| OpenWatch {
            sent_until: etcd.revision,
            waiting: VecDeque::new(),
            script: ScriptedWatch::after(after),
        });
        // as after a stall of a real stream (`Watch::stalls`): treat it as lost history, so that
        // the keys are compared
        if !is_new && etcd.bugs.skips_compacted_events && watch.sent_until < etcd.compacted {
            self.feed(Input::HistoryLost);
            return true;
        }
        let events = if is_new { etcd.watch(watch.script.start_revision().0) } else { etcd.events_after(watch.sent_until) };
        let Ok(events) = events else {
            self.feed(Input::HistoryLost);
            return true;
        };
        watch.waiting.extend(events);
        watch.sent_until = etcd.revision;
        if etcd.bugs.progress_ahead {
            // an error would be a bug of this fake
            assert!(matches!(watch.script.accept(Revision(etcd.revision), &[]), Ok(Some(WatchMessage::Progress { .. }))));
        }
        let Some((_, events)) = watch.waiting.pop_front() else { return is_new };
        match watch.script.accept(Revision(etcd.revision), &events).unwrap() {
            Some(WatchMessage::Events { revision, events }) => {
                self.await_applied();
                let keys: Vec<EntryKey> =
                    events.iter().map(|event| EntryKey::new(Kind::Identity, scope().cluster, name_of(key_of(event)))).collect();
                let evidence = self.evidence(etcd, &keys);
                self.feed(Input::Events { events, revision, evidence });
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        true
    }

    /// Lets time pass while the writer's keys exist. Returns whether that ended the holds.
    pub(super) fn let_time_pass(&mut self, etcd: &FakeEtcd, time: Duration) -> bool {
        self.check_holds(etcd);
        self.started += time;
        self.check_holds(etcd);
        !matches!(self.request, Some(Request::Watch(_)))
    }

    pub(super) fn check_holds(&mut self, etcd: &FakeEtcd) {
        let evidence = self.evidence(etcd, &[]);
        self.feed(Input::HoldCheck { evidence, now: self.started + etcd.clock, margin: MARGIN });
    }

    pub(super) fn served(&self) -> BTreeMap<String, Vec<u8>> {
        self.view.in_scope(&scope()).map(|record| (record.key.name.to_string(), record.value.to_vec())).collect()
    }

    /// Returns the unreadable keys that are reported.
    pub(super) fn unreadable_keys(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.resync.unreadable().iter().map(|(key, unreadable)| (key.to_vec(), unreadable.value.to_vec())).collect()
    }

    /// Runs until nothing is left to do.
    pub(super) fn run_to_end(&mut self, etcd: &FakeEtcd) {
        if !self.connected {
            self.connect(etcd);
        }
        self.lags = false;
        self.drain_queue();
        for _ in 0..10_000 {
            if !self.advance(etcd) {
                if self.resync.has_pending_prune() {
                    self.feed(Input::QuietTimeOver);
                    continue;
                }
                if self.resync.held_count() > 0 && self.let_time_pass(etcd, LEASE_TTL + MARGIN) {
                    continue;
                }
                return;
            }
        }
        panic!("the mirror never becomes idle");
    }
}
