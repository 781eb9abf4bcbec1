//! Closed sets of values: each becomes a named enum schema, which generators turn into a type.
//!
//! Free text from a source, such as a protocol or a session affinity, is not a closed set.

use serde_json::{Map, Value, json};

use crate::api::problem::ProblemCode;
use crate::dto::objects::global_services::ANY_CONFLICT;
use crate::findings::KINDS;
use crate::handle::{Affinity, CONFLICT_REASONS, SelectionRule};
use crate::model::{IdentityScope, Kind, Phase, SettingSource, Severity};

struct ClosedSet {
    name: &'static str,
    description: &'static str,
    texts: Vec<&'static str>,
    /// Members whose value, or whose items, are in the set: schema and member.
    members: &'static [(&'static str, &'static str)],
    /// Query parameters with these values: path (empty for all paths) and name.
    parameters: &'static [(&'static str, &'static str)],
}

fn sets() -> Vec<ClosedSet> {
    let mut sets = of_clusters();
    sets.extend(of_objects());
    sets.extend(of_answers());
    sets.extend(of_stream());
    sets.extend(of_requests());
    sets
}

fn of_clusters() -> Vec<ClosedSet> {
    vec![
        ClosedSet {
            name: "Phase",
            description: "Phase of the connection to a cluster.",
            texts: Phase::ALL.map(Phase::api_name).to_vec(),
            members: &[
                ("Cluster", "phase"),
                ("ClusterAge", "phase"),
                ("ItemMeta", "phase"),
                ("ServiceCluster", "phase"),
                ("Source", "phase"),
                ("SourceAge", "phase"),
            ],
            parameters: &[],
        },
        ClosedSet {
            name: "Origin",
            description: "`live`: the source confirmed the data since meshkeep started. `restored`: from the store, not confirmed yet. `neverRead`: no complete list was ever read.",
            texts: vec!["live", "restored", "neverRead"],
            members: &[
                ("Cluster", "origin"),
                ("ExplainedEntry", "origin"),
                ("GlobalBackend", "origin"),
                ("ItemMeta", "origin"),
                ("ListMeta", "origin"),
                ("Resource", "origin"),
                ("ServiceCluster", "origin"),
                ("Source", "origin"),
                ("SourceAge", "origin"),
            ],
            parameters: &[],
        },
        ClosedSet {
            name: "UnknownAge",
            description: "`unknown`: the source is itself a copy, and the age of the copied data cannot be known.",
            texts: vec!["unknown"],
            members: &[("ItemMeta", "sourceAge"), ("ServiceCluster", "sourceAge"), ("Source", "sourceAge"), ("SourceAge", "sourceAge")],
            parameters: &[],
        },
        ClosedSet {
            name: "SettingSource",
            description: "Layer that a setting comes from, in order of precedence.",
            texts: SettingSource::ALL.map(SettingSource::api_name).to_vec(),
            members: &[("Setting", "source")],
            parameters: &[],
        },
        ClosedSet {
            name: "StoreState",
            description: "State of the store.",
            texts: vec!["loading", "healthy", "lost", "failing", "stopped"],
            members: &[("StoreStatus", "state")],
            parameters: &[],
        },
    ]
}

fn of_objects() -> Vec<ClosedSet> {
    vec![
        ClosedSet {
            name: "Kind",
            description: "A kind of mirrored object.",
            texts: Kind::ALL.map(Kind::api_name).to_vec(),
            members: &[("Resource", "kind"), ("Source", "kind")],
            parameters: &[],
        },
        ClosedSet {
            name: "IdentityScope",
            description: "Scope of a numeric identity.",
            texts: IdentityScope::ALL.map(IdentityScope::api_name).to_vec(),
            members: &[("Identity", "scope"), ("IdentityAnswer", "scope")],
            parameters: &[("", "scope")],
        },
        ClosedSet {
            name: "EntrySource",
            description: "Source of an ipcache entry: `clustermesh`, or `node` if it is derived from a node's addresses or pod CIDRs.",
            texts: vec!["clustermesh", "node"],
            members: &[("ExplainedEntry", "source"), ("IpcacheAnswer", "source"), ("IpcacheEntry", "source")],
            parameters: &[],
        },
        ClosedSet {
            name: "Verdict",
            description: "Verdict on an entry that covers an address: `wins`, `shadowed` by a host entry for the same address, `lessSpecific`, or `outranked` by another entry of the same prefix.",
            texts: vec!["wins", "shadowed", "lessSpecific", "outranked"],
            members: &[("ExplainedEntry", "verdict")],
            parameters: &[],
        },
        ClosedSet {
            name: "BackendSource",
            description: "The kind of object that the backends come from.",
            texts: vec!["service", "endpointSlice"],
            members: &[("BackedService", "kind"), ("ServiceCluster", "source")],
            parameters: &[],
        },
        ClosedSet {
            name: "BackendState",
            description: "State of a backend.",
            texts: vec!["active", "terminating", "terminatingNotServing", "maintenance"],
            members: &[("GlobalBackend", "state")],
            parameters: &[],
        },
        ClosedSet {
            name: "TrafficPolicy",
            description: "Backends that the service's own cluster uses.",
            texts: vec!["Cluster", "Local"],
            members: &[("GlobalExports", "internalTrafficPolicy"), ("ServiceExport", "internalTrafficPolicy")],
            parameters: &[],
        },
    ]
}

fn of_answers() -> Vec<ClosedSet> {
    vec![
        ClosedSet {
            name: "ProblemCode",
            description: "Machine-readable type of an error. Each has a page below `/problems/`.",
            texts: ProblemCode::ALL.map(ProblemCode::name).to_vec(),
            members: &[("Problem", "code")],
            parameters: &[],
        },
        ClosedSet {
            name: "ConflictReason",
            description: "Reason of a conflict between exports of the same name, as in the `Conflict` condition of a `ServiceExport`.",
            texts: CONFLICT_REASONS.to_vec(),
            members: &[("ExportConflict", "reason")],
            parameters: &[],
        },
        ClosedSet {
            name: "FindingKind",
            description: "Kind of a finding.",
            texts: KINDS.iter().map(|(kind, _)| *kind).collect(),
            members: &[("Finding", "kind")],
            parameters: &[("/v1/problems", "kind")],
        },
        ClosedSet {
            name: "Severity",
            description: "`critical`: something is not served, or soon will not be. `warning`: something is served that is probably not intended. `info`: it resolves by itself.",
            texts: Severity::ALL.map(Severity::api_name).to_vec(),
            members: &[("Finding", "severity")],
            parameters: &[("/v1/problems", "severity")],
        },
        ClosedSet {
            name: "HintKind",
            description: "Kind of a possible reason why an address has no entry of its own, or an outdated one.",
            texts: vec!["rejected", "podCIDR", "deleted", "neverRead", "restored", "nearest"],
            members: &[("Hint", "kind")],
            parameters: &[],
        },
        ClosedSet {
            name: "SelectionRule",
            description: "The rule that decided which backends are used.",
            texts: SelectionRule::ALL.map(SelectionRule::api_name).to_vec(),
            members: &[("BackendSelection", "rule")],
            parameters: &[],
        },
    ]
}

fn of_stream() -> Vec<ClosedSet> {
    vec![
        ClosedSet {
            name: "EventType",
            description: "Type of an event.",
            texts: vec!["reset", "upsert", "patch", "delete", "cluster", "synced", "bookmark", "error"],
            members: &[("WatchEvent", "type")],
            parameters: &[],
        },
        ClosedSet {
            name: "EventReason",
            description: "Reason of a `delete` (the first four values) or of a `reset`.",
            texts: vec![
                "deleted",
                "leftFilter",
                "clusterRemoved",
                "unknown",
                "initial",
                "expired",
                "foreignEpoch",
                "rolledBack",
                "malformed",
            ],
            members: &[("WatchEvent", "reason")],
            parameters: &[],
        },
        ClosedSet {
            name: "ResetReason",
            description: "Reason why a client must drop its copy.",
            texts: vec!["initial", "expired", "foreignEpoch", "rolledBack", "malformed"],
            members: &[("Changes", "reset")],
            parameters: &[],
        },
        ClosedSet {
            name: "SyncMode",
            description: "Events that were sent before `synced`: a snapshot or a replay.",
            texts: vec!["snapshot", "replay"],
            members: &[("WatchEvent", "mode")],
            parameters: &[],
        },
    ]
}

fn of_requests() -> Vec<ClosedSet> {
    vec![
        ClosedSet {
            name: "StreamedKind",
            description: "A kind of object in the change stream.",
            texts: Kind::STREAMED.map(Kind::api_name).to_vec(),
            members: &[("Rejected", "kind"), ("WatchEvent", "kind")],
            parameters: &[("/v1/changes", "kind"), ("/v1/events", "kind")],
        },
        ClosedSet {
            name: "Affinity",
            description: "Preferred backends of a global service.",
            texts: Affinity::ALL.map(Affinity::api_name).to_vec(),
            members: &[("BackendSelection", "affinity")],
            parameters: &[("", "affinity")],
        },
        ClosedSet {
            name: "ConflictFilter",
            description: "List only services with this conflict between their exports. `any`: with any conflict.",
            texts: std::iter::once(ANY_CONFLICT).chain(CONFLICT_REASONS).collect(),
            members: &[],
            parameters: &[("/v1/global-services", "conflict")],
        },
        ClosedSet {
            name: "MetaDetail",
            description: "Level of detail of `meta`.",
            texts: vec!["full", "none"],
            members: &[],
            parameters: &[("", "meta")],
        },
        ClosedSet {
            name: "NeverRead",
            description: "Handling of clusters that were never read.",
            texts: vec!["ignore"],
            members: &[],
            parameters: &[("", "neverRead")],
        },
        ClosedSet {
            name: "OnExpired",
            description: "Reaction to a position that can no longer be served.",
            texts: vec!["fail", "reset"],
            members: &[],
            parameters: &[("", "onExpired")],
        },
    ]
}

/// Gives each set a schema, and lets members and parameters refer to it.
pub(super) fn add(document: &mut Value) {
    for set in sets() {
        let schema = json!({ "type": "string", "description": set.description, "enum": set.texts });
        let reference = json!({ "$ref": format!("#/components/schemas/{}", set.name) });
        for (name, member) in set.members {
            if let Some(found) = document.pointer_mut(&format!("/components/schemas/{name}/properties/{member}")) {
                refer(found, &reference);
            }
        }
        for (path, name) in set.parameters {
            each_parameter(document, &mut |of, parameter| {
                if parameter["name"] == *name && (path.is_empty() || *path == of) {
                    refer(&mut parameter["schema"], &reference);
                }
            });
        }
        document["components"]["schemas"][set.name] = schema;
    }
}

/// Calls a function with each query parameter and its path.
fn each_parameter(document: &mut Value, see: &mut dyn FnMut(&str, &mut Value)) {
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, item) in paths {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten();
            parameters.for_each(|parameter| see(path, parameter));
        }
    }
}

/// Makes a text, or each item of a list of strings, refer to a set.
fn refer(schema: &mut Value, reference: &Value) {
    if schema["type"] == "array" {
        schema["items"] = reference.clone();
        return;
    }
    let description = schema.get("description").cloned();
    *schema = reference.clone();
    if let Some(description) = description {
        schema["description"] = description;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::openapi::build;

    #[test]
    fn every_member_and_parameter_of_a_set_is_there_and_refers_to_it() {
        let mut document = build();
        for set in sets() {
            let reference = format!("#/components/schemas/{}", set.name);
            for (name, member) in set.members {
                let found = document.pointer(&format!("/components/schemas/{name}/properties/{member}"));
                let found = found.unwrap_or_else(|| panic!("{name} has no {member}"));
                assert!(found["$ref"] == *reference || found["items"]["$ref"] == *reference, "{name}.{member}: {found}");
            }
            for (path, name) in set.parameters {
                let mut count = 0;
                each_parameter(&mut document, &mut |of, parameter| {
                    if parameter["name"] == *name && (path.is_empty() || *path == of) {
                        let schema = &parameter["schema"];
                        assert!(schema["$ref"] == *reference || schema["items"]["$ref"] == *reference, "{of} {name}: {schema}");
                        count += 1;
                    }
                });
                assert_ne!(count, 0, "no {path} has {name}");
            }
        }
    }

    /// Texts in backquotes after a colon, or at the beginning of a description, are the values of a
    /// member.
    #[test]
    fn every_enumerated_text_is_in_a_closed_set() {
        // free text from a source
        const OPEN: [&str; 10] = [
            "Port.protocol",
            "ExportPort.protocol",
            "GlobalPort.protocol",
            "NodeAddress.type",
            "SlicePort.protocol",
            "EndpointSlice.addressType",
            "GlobalExports.sessionAffinity",
            "GlobalExports.type",
            "ServiceExport.sessionAffinity",
            "ServiceExport.type",
        ];
        let document = build();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            for (member, property) in schema["properties"].as_object().into_iter().flatten() {
                let description = property["description"].as_str().unwrap_or_default();
                let lists = |text: &str| text.starts_with('`') && (text.contains("`, `") || text.contains("` or `"));
                let is_listed = lists(description) || description.split(": ").any(lists);
                let is_open = OPEN.contains(&format!("{name}.{member}").as_str());
                assert!(property["type"] != "string" || !is_listed || is_open, "{name}.{member} is a plain string: {description}");
            }
        }
    }
}
