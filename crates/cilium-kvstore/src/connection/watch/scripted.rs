//! Watch for tests that supply the server's responses. Sends the same request and returns the same
//! messages as a watch over a connection.

use etcd_client::proto::{PbEvent, PbKeyValue, PbResponseHeader, PbWatchResponse};

use super::{RevisionAssembler, WatchMessage, start_revision};
use crate::{EtcdClusterId, Event, KeyValue, KvstoreError, Revision};

const CLUSTER: u64 = 0xabc;

/// Watch without a server: the test passes the responses to [`ScriptedWatch::accept`].
pub struct ScriptedWatch {
    after: Revision,
    assembler: RevisionAssembler,
}

impl ScriptedWatch {
    /// Creates the watch that `Connection::watch` would create after a read at revision `after`.
    pub fn after(after: Revision) -> Self {
        Self { after, assembler: RevisionAssembler::new(EtcdClusterId(CLUSTER), "watching".into(), usize::MAX, after) }
    }

    /// Returns the start revision that the request to etcd would have.
    pub fn start_revision(&self) -> Revision {
        start_revision(self.after)
    }

    /// Processes one response.
    pub fn accept(&mut self, header_revision: Revision, events: &[Event]) -> Result<Option<WatchMessage>, KvstoreError> {
        let header = PbResponseHeader { cluster_id: CLUSTER, revision: header_revision.0, ..Default::default() };
        let events = events.iter().map(pb_event).collect();
        self.assembler.accept(PbWatchResponse { header: Some(header), watch_id: 1, events, ..Default::default() })
    }
}

fn pb_event(event: &Event) -> PbEvent {
    match event {
        Event::Put(KeyValue { key, value, create_revision, mod_revision, version, lease }) => {
            let kv = PbKeyValue {
                key: key.clone(),
                value: value.to_vec(),
                create_revision: create_revision.0,
                mod_revision: mod_revision.0,
                version: *version,
                lease: lease.0,
            };
            PbEvent { r#type: crate::values::EVENT_TYPE_PUT, kv: Some(kv), prev_kv: None }
        }
        Event::Delete { key, mod_revision } => {
            let kv = PbKeyValue { key: key.clone(), mod_revision: mod_revision.0, ..Default::default() };
            PbEvent { r#type: crate::values::EVENT_TYPE_DELETE, kv: Some(kv), prev_kv: None }
        }
    }
}
