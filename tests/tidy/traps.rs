//! The numbered traps of Cilium's protocol (docs/develop/protocol.md §11), each with the tests that
//! cover it.

use std::fs;
use std::path::Path;

/// Coverage of a trap.
enum Coverage {
    /// Tests of the trap, as file and function.
    Tests(&'static [(&'static str, &'static str)]),
    /// The trap cannot affect meshkeep, for this reason.
    NotApplicable(&'static str),
}

const WIRE: &str = "src/wire/tests/traps.rs";
const LOSSES: &str = "tests/e2e/losses.rs";

/// Number, description and coverage of every trap.
const TRAPS: [(u8, &str, Coverage); 36] = [
    (1, "canaries are named after base prefixes", Coverage::Tests(&[(WIRE, "trap_1_canaries_are_named_after_base_prefixes")])),
    (2, "a copy moves the cluster's name within the key", Coverage::Tests(&[(WIRE, "trap_2_cache_prefixes_move_the_cluster")])),
    (
        3,
        "keys of ips and identities of direct peers do not name the cluster",
        Coverage::Tests(&[(WIRE, "trap_3_only_the_connection_determines_the_cluster_of_a_key")]),
    ),
    (
        4,
        "canaries are under the source's name in a copy too",
        Coverage::Tests(&[(WIRE, "trap_4_canaries_in_a_copy_have_the_name_of_the_source_cluster")]),
    ),
    (
        5,
        "an invalid update deletes nothing",
        Coverage::Tests(&[("tests/e2e/bad_input.rs", "invalid_values_are_listed_and_the_last_valid_ones_stay")]),
    ),
    (
        6,
        "a list after a compaction deletes the keys that disappeared",
        Coverage::Tests(&[("tests/e2e/whole_mesh.rs", "a_compaction_while_disconnected_leads_to_the_truth")]),
    ),
    (7, "older copies contain the value keys of allocators", Coverage::Tests(&[(WIRE, "trap_7_value_keys_are_not_identities")])),
    (
        8,
        "a prefix without a slash matches other clusters too",
        Coverage::Tests(&[
            (WIRE, "trap_8_a_prefix_ends_in_a_slash"),
            ("tests/e2e/clusters.rs", "clusters_with_a_common_name_prefix_are_independent"),
        ]),
    ),
    (9, "a CIDR in a key contains a slash", Coverage::Tests(&[(WIRE, "trap_9_a_prefix_in_a_key_keeps_its_slash")])),
    (10, "null, missing and empty values all occur", Coverage::Tests(&[(WIRE, "trap_10_null_absent_and_empty_are_the_same")])),
    (11, "CIDRs have two forms, and masks may have holes", Coverage::Tests(&[(WIRE, "trap_11_cidrs_have_two_forms_and_canonical_masks")])),
    (
        12,
        "false is not the same as missing",
        Coverage::Tests(&[
            (WIRE, "trap_12_disabled_service_exports_differ_from_absent_ones"),
            ("src/wire/cluster_config.rs", "a_config_determines_which_kinds_are_published"),
        ]),
    ),
    (
        13,
        "values are not always text",
        Coverage::Tests(&[(WIRE, "trap_13_values_need_not_be_text"), ("src/wire/tests/samples.rs", "an_endpoint_slice_is_read_in_full")]),
    ),
    (
        14,
        "the first missed heartbeat ends a connection",
        Coverage::Tests(&[("tests/e2e/remotes.rs", "the_first_missed_heartbeat_ends_only_the_connection")]),
    ),
    (
        15,
        "a KVStoreMesh hides that a source is dead",
        Coverage::Tests(&[("tests/e2e/freshness.rs", "the_age_of_a_source_behind_a_kvstoremesh_is_unknown")]),
    ),
    (
        16,
        "keys that expire with their lease look like deletes",
        Coverage::Tests(&[
            (LOSSES, "an_expired_lease_of_a_thousand_keys_removes_nothing"),
            ("src/clustermesh/resync/tests/held_keys.rs", "random_losses_of_a_source_remove_no_keys"),
        ]),
    ),
    (
        17,
        "only the bytes of the client file matter, not those of its certificates",
        Coverage::Tests(&[
            ("tests/e2e/directory.rs", "rewriting_files_with_the_same_bytes_disturbs_nothing"),
            ("tests/e2e/remotes.rs", "rotated_certificates_are_used_from_the_next_connection_on"),
            ("tests/kvstore/connection.rs", "certificates_are_read_again_for_each_connection"),
        ]),
    ),
    (
        18,
        "an update of a Secret causes no event with the file's name",
        Coverage::Tests(&[
            ("src/clustermesh/directory/tests.rs", "swaps_of_a_mounted_secret_are_announced"),
            ("tests/e2e/directory.rs", "files_that_are_no_cluster_files_are_reported_and_do_no_harm"),
        ]),
    ),
    (
        19,
        "another etcd cluster id is no reason to flush",
        Coverage::Tests(&[
            ("tests/e2e/whole_mesh.rs", "a_wiped_etcd_prunes_nothing_until_it_is_filled"),
            ("tests/e2e/whole_mesh.rs", "a_wiped_etcd_that_looks_the_same_is_not_mistaken_for_the_old_one"),
        ]),
    ),
    (
        20,
        "a change of the cluster id drains first",
        Coverage::Tests(&[("tests/e2e/clusters.rs", "a_cluster_with_a_new_id_is_removed_and_read_again")]),
    ),
    (21, "reserved identities have special rules", Coverage::Tests(&[(WIRE, "trap_21_reserved_ids_are_valid_only_in_ip_entries")])),
    (
        22,
        "a host and a CIDR of full length are two entries",
        Coverage::Tests(&[
            ("src/view/index/ipcache.rs", "the_longest_prefix_wins_and_hosts_precede_cidrs"),
            ("src/api/tests/answering/explanations.rs", "an_explanation_has_every_entry_and_the_reason_for_its_choice"),
        ]),
    ),
    (
        23,
        "nodes' addresses are not announced as ips, and a host address need not be known",
        Coverage::Tests(&[
            ("src/view/tests/derived.rs", "a_node_has_the_derived_entries_that_an_agent_adds"),
            (WIRE, "trap_23_a_host_ip_need_not_be_known"),
        ]),
    ),
    (24, "labels are ordered by key alone", Coverage::Tests(&[(WIRE, "trap_24_the_order_of_labels_has_no_meaning")])),
    (25, "zero times of status models are serialised", Coverage::NotApplicable("no status model of an agent is read")),
    (26, "Go's JSON escapes some characters", Coverage::Tests(&[(WIRE, "trap_26_escapes_of_go_are_decoded")])),
    (27, "equal bytes are put again", Coverage::Tests(&[("tests/e2e/streams.rs", "equal_bytes_with_a_new_lease_cause_no_event")])),
    (
        28,
        "the locks of allocation and of garbage collection differ",
        Coverage::Tests(&[("tests/allocator/locks.rs", "trap_28_a_collectors_lock_does_not_block_allocation")]),
    ),
    (29, "documented intervals are approximate", Coverage::NotApplicable("ages come from answers, not from an agent's intervals")),
    (
        30,
        "a service export may have both `labels` and `Labels`",
        Coverage::Tests(&[
            (WIRE, "trap_30_keys_that_differ_in_case_are_merged"),
            ("src/wire/tests/exports.rs", "capitalised_labels_of_older_releases_are_accepted"),
        ]),
    ),
    (
        31,
        "older etcds answer nothing to a watch from a compacted delete",
        Coverage::Tests(&[
            ("tests/kvstore/watch.rs", "a_delete_compacted_before_the_watch_is_an_error"),
            ("src/clustermesh/resync/tests.rs", "the_mirror_equals_the_source_after_random_sequences"),
        ]),
    ),
    (
        32,
        "watches send old events, progress ahead of events, or lose events while they are starved",
        Coverage::Tests(&[
            ("crates/cilium-kvstore/src/connection/watch.rs", "events_up_to_the_read_revision_are_dropped"),
            ("crates/cilium-kvstore/src/connection/watch_stream.rs", "a_slow_delivery_is_a_stall_and_silence_is_not"),
            ("tests/e2e/hostile.rs", "entries_are_listed_again_after_a_stalled_watch"),
            ("tests/kvstore/watch.rs", "a_watch_after_a_future_revision_is_an_error"),
            ("src/clustermesh/resync/tests.rs", "the_mirror_equals_the_source_after_random_sequences"),
        ]),
    ),
    (
        33,
        "a namespace can be removed from the mesh",
        Coverage::Tests(&[("tests/e2e/namespaces.rs", "a_namespace_removed_from_the_mesh_is_deleted_at_once")]),
    ),
    (
        34,
        "Go's decoders accept and refuse values that no writer of Cilium writes",
        Coverage::Tests(&[
            ("src/wire/tests/go_corners.rs", "field_names_match_without_regard_to_case"),
            ("src/wire/tests/go_corners.rs", "lone_surrogates_become_the_replacement_character"),
            ("src/wire/tests/go_corners.rs", "known_fields_of_a_wrong_type_are_refused_even_if_unused"),
            ("src/wire/tests/exports.rs", "a_slice_may_have_mapped_addresses_invalid_ports_and_groups"),
        ]),
    ),
    (
        35,
        "the delayed delete of a pod must not remove its replacement",
        Coverage::Tests(&[("src/clustermesh/resync/tests/held_keys.rs", "a_late_delete_of_a_held_key_does_not_remove_its_replacement")]),
    ),
    (
        36,
        "a compaction ends the watches of heartbeat, config and canaries",
        Coverage::Tests(&[
            ("tests/kvstore/follow.rs", "a_followed_range_misses_no_change_during_compactions"),
            ("tests/e2e/compaction.rs", "constant_compaction_costs_no_connection_and_no_change"),
        ]),
    ),
];

#[test]
fn every_trap_has_an_existing_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(TRAPS.is_sorted_by_key(|(number, ..)| *number));
    for (number, description, coverage) in &TRAPS {
        match coverage {
            Coverage::Tests(tests) => {
                assert!(!tests.is_empty(), "trap {number} ({description}) has no test");
                for (file, test) in *tests {
                    let text = fs::read_to_string(root.join(file)).unwrap();
                    assert!(text.contains(&format!("fn {test}()")), "trap {number} ({description}): {file} has no {test}");
                }
            }
            Coverage::NotApplicable(reason) => assert!(!reason.is_empty(), "trap {number} ({description})"),
        }
    }
}
