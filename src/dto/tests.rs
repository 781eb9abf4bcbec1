//! Each shape deserializes its own JSON and that of a newer server. The examples in the OpenAPI
//! document are answers of a real server.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::config::{Config, Setting};
use super::events::{BackendChanges, Changes, EventMeta, WatchEvent};
use super::findings::{BackedService, ExplainedEntry, Explanation, Finding, FindingList, Hint};
use super::log::Log;
use super::lookup::{LookupAnswer, LookupItem, LookupList, LookupRequest};
use super::meta::{ItemMeta, ListMeta, Source, SourceAge};
use super::objects::last_change::LastChange;
use super::objects::{Backend, Frontend, Identity, IdentityAnswer, IpcacheAnswer, IpcacheEntry, Node, NodeAddress, Port, Service};
use super::problem::ProblemDocument;
use super::raw::{Entry, Rejected};
use super::reflection::ReflectionStatus;
use super::status::{
    Cluster, ClusterAge, ClusterConfigStatus, ClusterVerification, DirectoryStatus, DumpStatus, HistoryStatus, KindVerification, Resource,
    Status, StatusCounts, StoreStatus, VerificationList,
};
use super::*;
use crate::dto::meta::UnknownPeriod;
use crate::dto::objects::exports::{EndpointSlice, ExportPort, ServiceExport, SliceEndpoint, SlicePort};
use crate::dto::objects::global_services::{
    BackendSelection, ExportConflict, GlobalBackend, GlobalExports, GlobalPort, GlobalService, ServiceCluster, TooLarge,
};
use crate::dto::objects::impact::{AffinityEffects, Impact};
use crate::dto::streamed::StreamedObject;
use crate::dto::streamed::{EntryVersion, VersionList};
use crate::dto::values::Open;

fn examples() -> Value {
    let mut examples: Value = serde_json::from_str(include_str!("../api/openapi/examples.json")).unwrap();
    examples["schemas"].take()
}

/// Deserializes an example, also as a newer server might send it, and serializes it again.
fn check<T: Serialize + DeserializeOwned>(example: &Value) -> Result<Value, serde_json::Error> {
    T::deserialize(newer(example))?;
    serde_json::to_value(T::deserialize(example)?)
}

/// Adds an unknown member to each object, and replaces texts with unknown texts. In an object of
/// numbers the new member is a number, so that a map of numbers accepts it too.
fn newer(value: &Value) -> Value {
    match value {
        Value::String(_) => "tomorrow".into(),
        Value::Array(values) => values.iter().map(newer).collect(),
        Value::Object(members) => {
            let is_of_numbers = members.values().all(Value::is_number);
            let more = ("tomorrow".to_owned(), if is_of_numbers { 1.into() } else { "tomorrow".into() });
            members.iter().map(|(name, value)| (name.clone(), newer(value))).chain([more]).collect()
        }
        other => other.clone(),
    }
}

type ShapeCheck = fn(&Value) -> Result<Value, serde_json::Error>;

macro_rules! checks {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), check::<$name> as ShapeCheck)),*] };
}

#[test]
fn every_shape_reads_its_own_json_and_that_of_a_newer_server() {
    let checks = checks![
        AffinityEffects,
        BackedService,
        Backend,
        BackendChanges,
        BackendSelection,
        Changes,
        Cluster,
        ClusterAge,
        ClusterConfigStatus,
        ClusterList,
        ClusterVerification,
        Config,
        DirectoryStatus,
        DumpStatus,
        EndpointSlice,
        EndpointSliceList,
        Entry,
        EntryList,
        EntryVersion,
        EventMeta,
        ExplainedEntry,
        Explanation,
        ExportConflict,
        ExportPort,
        Finding,
        FindingList,
        Frontend,
        GlobalBackend,
        GlobalExports,
        GlobalPort,
        GlobalService,
        GlobalServiceList,
        Hint,
        HistoryStatus,
        Identity,
        IdentityAnswer,
        IdentityList,
        Impact,
        ImpactList,
        IpcacheAnswer,
        IpcacheEntry,
        IpcacheList,
        ItemMeta,
        KindVerification,
        LastChange,
        ListMeta,
        Log,
        LookupAnswer,
        LookupItem,
        LookupList,
        Node,
        NodeAddress,
        NodeList,
        Port,
        ReflectionStatus,
        Rejected,
        RejectedList,
        Resource,
        Service,
        ServiceCluster,
        ServiceExport,
        ServiceExportList,
        ServiceList,
        Setting,
        SliceEndpoint,
        SlicePort,
        Source,
        SourceAge,
        Status,
        StatusCounts,
        StoreStatus,
        StreamedObject,
        TooLarge,
        UnknownPeriod,
        VerificationList,
        VersionList,
        WatchEvent,
    ];
    let examples = examples();
    for (name, check) in checks.into_iter().chain([("Problem", check::<ProblemDocument> as ShapeCheck)]) {
        let written = check(&examples[name]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(written, examples[name], "{name}");
    }
    let known: BTreeSet<&str> = checks.iter().map(|(name, _)| *name).chain(["Problem", "LookupRequest", "TargetGroup"]).collect();
    let unread: Vec<&String> = examples.as_object().unwrap().keys().filter(|name| !known.contains(name.as_str())).collect();
    assert!(unread.is_empty(), "{unread:?}");
    serde_json::from_value::<LookupRequest>(examples["LookupRequest"].clone()).unwrap();
}

/// Null means that nothing matched; an item for a text that is not an address has no `match`.
#[test]
fn a_missing_match_differs_from_a_failed_lookup() {
    for text in [r#"{"ip":"10.9.9.9","match":null}"#, r#"{"ip":"x","error":"not an IP address"}"#] {
        let item: LookupItem = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&item).unwrap(), text);
    }
}

#[test]
fn an_event_of_an_unknown_kind_has_no_object() {
    let event: WatchEvent = serde_json::from_str(r#"{"type":"upsert","kind":"tunnel","key":"k","object":{"ends":[1,2]}}"#).unwrap();
    assert_eq!((event.kind.as_ref().map(Open::name), event.key.as_deref(), event.object.is_some()), (Some("tunnel"), Some("k"), false));
}
