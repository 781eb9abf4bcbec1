//! The traps of Cilium's protocol by number, as in the protocol's description, each with the tests
//! that cover it.

use std::fs;
use std::path::Path;

/// Coverage of a trap.
enum Covered {
    /// Tests of the trap, as file and function.
    By(&'static [(&'static str, &'static str)]),
    /// The trap cannot affect meshkeep, for this reason.
    Not(&'static str),
}

const WIRE: &str = "src/wire/tests/traps.rs";
const LOSSES: &str = "tests/e2e/losses.rs";

/// Number, description and coverage of every trap.
const TRAPS: [(u8, &str, Covered); 36] = [
    (1, "canaries are named after base prefixes", Covered::By(&[(WIRE, "trap_1_canaries_are_named_after_base_prefixes")])),
    (2, "a copy moves the cluster within the key", Covered::By(&[(WIRE, "trap_2_cache_prefixes_move_the_cluster")])),
    (
        3,
        "ips and identities of direct peers name no cluster",
        Covered::By(&[(WIRE, "trap_3_only_the_connection_says_whose_an_ip_or_identity_is")]),
    ),
    (
        4,
        "canaries stand under the source's name in a copy too",
        Covered::By(&[(WIRE, "trap_4_canaries_are_under_the_sources_name_in_a_copy_too")]),
    ),
    (
        5,
        "an update that cannot be used deletes nothing",
        Covered::By(&[("tests/e2e/bad_input.rs", "values_that_cannot_be_used_are_listed_and_the_good_ones_before_them_stay")]),
    ),
    (
        6,
        "a list after a compaction deletes what vanished",
        Covered::By(&[("tests/e2e/whole_mesh.rs", "a_compaction_while_cut_off_leads_to_the_truth")]),
    ),
    (7, "older copies have keys of allocators", Covered::By(&[(WIRE, "trap_7_value_keys_are_no_identities")])),
    (
        8,
        "a prefix without a slash is another cluster's too",
        Covered::By(&[
            (WIRE, "trap_8_a_prefix_ends_in_a_slash"),
            ("tests/e2e/clusters.rs", "clusters_whose_names_begin_alike_are_kept_apart"),
        ]),
    ),
    (9, "a prefix in a key has a slash", Covered::By(&[(WIRE, "trap_9_a_prefix_in_a_key_keeps_its_slash")])),
    (10, "null, absent and empty", Covered::By(&[(WIRE, "trap_10_null_absent_and_empty_are_the_same")])),
    (11, "two forms of CIDRs, and masks with holes", Covered::By(&[(WIRE, "trap_11_cidrs_have_two_forms_and_canonical_masks")])),
    (
        12,
        "off is not absent",
        Covered::By(&[
            (WIRE, "trap_12_service_exports_off_is_not_absent"),
            ("src/wire/cluster_config.rs", "a_config_says_which_kinds_there_are"),
        ]),
    ),
    (
        13,
        "values need not be text",
        Covered::By(&[(WIRE, "trap_13_values_need_not_be_text"), ("src/wire/tests/samples.rs", "an_endpoint_slice_is_read_in_full")]),
    ),
    (
        14,
        "one missed heartbeat is one too many",
        Covered::By(&[("tests/e2e/remotes.rs", "the_first_missed_heartbeat_ends_a_connection_and_nothing_goes")]),
    ),
    (
        15,
        "behind a KVStoreMesh a dead source cannot be seen",
        Covered::By(&[("tests/e2e/freshness.rs", "of_a_copy_the_age_of_the_source_is_unknown_and_of_a_direct_peer_it_is_the_age")]),
    ),
    (
        16,
        "what is lost with its lease vanishes as deletes",
        Covered::By(&[
            (LOSSES, "a_lease_of_a_thousand_keys_that_expires_takes_nothing_with_it"),
            ("src/clustermesh/resync/tests/held_keys.rs", "random_losses_delete_nothing_that_the_source_lost"),
        ]),
    ),
    (
        17,
        "only the file's bytes count, not its certificates'",
        Covered::By(&[
            ("tests/e2e/directory.rs", "touching_and_rewriting_files_with_the_same_bytes_disturbs_nothing"),
            ("tests/e2e/remotes.rs", "rotated_certificates_disturb_no_connection_and_count_from_the_next"),
            ("tests/kvstore/connection.rs", "certificates_are_read_anew_for_each_connection"),
        ]),
    ),
    (
        18,
        "updates of Secrets name no file",
        Covered::By(&[
            ("src/clustermesh/directory/tests.rs", "a_secret_mount_is_followed_through_its_swaps"),
            ("tests/e2e/directory.rs", "what_is_not_a_cluster_file_is_named_and_does_no_harm"),
        ]),
    ),
    (
        19,
        "another etcd is no reason to flush",
        Covered::By(&[
            ("tests/e2e/whole_mesh.rs", "a_wiped_etcd_prunes_nothing_until_it_is_filled"),
            ("tests/e2e/whole_mesh.rs", "a_wiped_etcd_that_looks_the_same_is_not_mistaken_for_the_old_one"),
        ]),
    ),
    (
        20,
        "another cluster id drains first",
        Covered::By(&[("tests/e2e/clusters.rs", "a_cluster_whose_id_changes_is_removed_and_read_anew")]),
    ),
    (21, "reserved identities", Covered::By(&[(WIRE, "trap_21_reserved_ids_are_valid_in_pairs_only_and_host_becomes_remote_node")])),
    (
        22,
        "a host and a CIDR of full length are two entries",
        Covered::By(&[
            ("src/view/index/ipcache.rs", "the_longest_prefix_wins_and_a_host_beats_a_cidr_of_full_length"),
            ("src/api/tests/answering/explanations.rs", "an_explanation_has_every_entry_and_the_reason_for_its_choice"),
        ]),
    ),
    (
        23,
        "nodes' addresses are not announced as ips, and a host address need not be known",
        Covered::By(&[
            ("src/view/tests/derived.rs", "a_node_s_addresses_pod_cidrs_health_and_ingress_are_entries_as_an_agent_makes_them"),
            (WIRE, "trap_23_a_host_ip_need_not_be_known"),
        ]),
    ),
    (24, "labels are ordered by key alone", Covered::By(&[(WIRE, "trap_24_the_order_of_labels_says_nothing")])),
    (25, "zero times of status models are written", Covered::Not("no status model of an agent is read")),
    (26, "Go escapes", Covered::By(&[(WIRE, "trap_26_escapes_of_go_are_read_back")])),
    (27, "equal bytes are put again", Covered::By(&[("tests/e2e/streams.rs", "equal_bytes_under_a_new_lease_are_no_event")])),
    (
        28,
        "locks of allocation and of its collection differ",
        Covered::By(&[("tests/allocator/locks.rs", "trap_28_a_collector_s_lock_does_not_keep_anybody_from_allocating")]),
    ),
    (29, "documented intervals are approximate", Covered::Not("ages come from answers, not from an agent's intervals")),
    (
        30,
        "labels and Labels",
        Covered::By(&[
            (WIRE, "trap_30_keys_that_differ_in_case_are_merged"),
            ("src/wire/tests/exports.rs", "capital_labels_of_older_releases_are_the_same_labels"),
        ]),
    ),
    (
        31,
        "of a watch at a compacted delete older etcds say nothing",
        Covered::By(&[
            ("tests/kvstore/watch.rs", "a_delete_that_is_compacted_before_the_watch_stands_is_reported_as_lost_history"),
            ("src/clustermesh/resync/tests.rs", "random_sequences_end_equal_to_the_source"),
        ]),
    ),
    (
        32,
        "watches tell old events, progress ahead of events, or leave out what was compacted while they starved",
        Covered::By(&[
            ("crates/cilium-kvstore/src/connection/watch.rs", "events_of_the_read_revision_are_dropped_and_progress_changes_nothing"),
            ("crates/cilium-kvstore/src/connection/watch_stream.rs", "an_unread_response_is_a_stall_and_silence_is_not"),
            ("tests/e2e/hostile.rs", "what_is_held_is_compared_after_a_watch_was_held_up"),
            ("tests/kvstore/watch.rs", "a_watch_after_a_revision_that_the_server_does_not_have_is_an_error"),
            ("src/clustermesh/resync/tests.rs", "random_sequences_end_equal_to_the_source"),
        ]),
    ),
    (
        33,
        "a namespace is taken out of the mesh",
        Covered::By(&[("tests/e2e/namespaces.rs", "a_namespace_that_is_taken_out_of_the_mesh_goes_at_once_and_nothing_is_held")]),
    ),
    (
        34,
        "Go's readers take and refuse what no writer of Cilium writes",
        Covered::By(&[
            ("src/wire/tests/go_corners.rs", "field_names_match_without_case_also_in_two_letters_of_other_scripts"),
            ("src/wire/tests/go_corners.rs", "an_escape_of_a_lone_surrogate_is_the_replacement_character"),
            ("src/wire/tests/go_corners.rs", "a_known_field_of_a_wrong_type_refuses_the_value_used_or_not"),
            ("src/wire/tests/exports.rs", "a_slice_may_have_mapped_addresses_ports_that_are_none_and_groups"),
        ]),
    ),
    (
        35,
        "the delayed delete of a pod must not remove its replacement",
        Covered::By(&[("src/clustermesh/resync/tests/held_keys.rs", "a_late_delete_of_a_held_key_does_not_remove_its_replacement")]),
    ),
    (
        36,
        "compactions end watches of heartbeat, config and canaries",
        Covered::By(&[
            ("tests/kvstore/follow.rs", "a_short_range_is_followed_over_compactions_and_nothing_is_missed"),
            ("tests/e2e/compaction.rs", "an_etcd_that_is_compacted_all_the_time_costs_no_connection_and_no_change"),
        ]),
    ),
];

#[test]
fn every_trap_has_a_test_that_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(TRAPS.is_sorted_by_key(|(number, ..)| *number));
    for (number, what, covered) in &TRAPS {
        match covered {
            Covered::By(tests) => {
                assert!(!tests.is_empty(), "trap {number} ({what}) has no test");
                for (file, test) in *tests {
                    let text = fs::read_to_string(root.join(file)).unwrap();
                    assert!(text.contains(&format!("fn {test}()")), "trap {number} ({what}): {file} has no {test}");
                }
            }
            Covered::Not(reason) => assert!(!reason.is_empty(), "trap {number} ({what})"),
        }
    }
}
