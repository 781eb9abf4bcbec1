//! The upgrade from layout 2, broken off at any moment.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::Loaded;
use super::fixture::{copied, held_by_the_killed, without_positions};
use super::memory::{Disk, Rig};
use crate::store::encoding::codec::{self, Testimony};
use crate::store::engine::Engine;
use crate::store::engine::slots::{Slot, SlotKind, Slots};
use crate::store::recovery::layout2::fold;

/// The slots of the killed store, and its witness.
fn killed() -> (BTreeMap<Slot, Vec<u8>>, Testimony) {
    let directory = copied("0002-packed/killed");
    let witness = codec::read_witness(&fs::read(directory.path().join("store/witness")).unwrap()).unwrap();
    let engine = Engine::open(&directory.path().join("store")).unwrap();
    let slots = engine.slots().unwrap();
    (slots.into_iter().filter_map(|slot| Some((slot, engine.get(slot).unwrap()?))).collect(), witness)
}

fn disk_of(slots: &BTreeMap<Slot, Vec<u8>>) -> Disk {
    let disk = Disk::default();
    slots.iter().for_each(|(slot, value)| disk.change(*slot, |_| Some(value.clone())));
    disk
}

fn opened(disk: &Disk) -> Loaded {
    Rig::open(disk).unwrap().1
}

#[test]
fn an_upgrade_that_is_broken_off_anywhere_is_finished_by_the_next_start() {
    let (slots, witness) = killed();
    let expected = without_positions(held_by_the_killed());
    let (mut step, mut is_finished) = (0, false);
    while !is_finished {
        for seed in 0..4 {
            let disk = disk_of(&slots);
            disk.break_after(Some(step));
            is_finished = fold(disk.clone(), Some(witness), &disk).is_ok();
            let mut random = StdRng::seed_from_u64(seed);
            disk.cut_power(&mut random);
            // again and again, until it ends
            for more in [3, 17] {
                disk.break_after(Some(more));
                drop(fold(disk.clone(), Some(witness), &disk));
                disk.cut_power(&mut random);
            }
            fold(disk.clone(), Some(witness), &disk).unwrap();
            disk.cut_power(&mut random);
            assert!(opened(&disk) == expected, "broken off after {step} steps, seed {seed}");
        }
        step += 1;
    }
    assert!(step > 10, "it has {step} steps");
}

/// What may be ahead of its entries does not come along.
#[test]
fn a_damaged_log_or_witness_of_layout_2_costs_every_cursor() {
    let (slots, witness) = killed();
    let upgraded = |slots: &BTreeMap<Slot, Vec<u8>>, witness: Option<Testimony>| {
        let disk = disk_of(slots);
        // broken off once the verdict is there
        disk.break_after(Some(9));
        drop(fold(disk.clone(), witness, &disk));
        disk.cut_power(&mut StdRng::seed_from_u64(1));
        fold(disk.clone(), witness, &disk).unwrap();
        opened(&disk)
    };
    assert_eq!(upgraded(&slots, Some(witness)).cursors.len(), 4);
    for testimony in
        [None, Some(Testimony { suspect: true, ..witness }), Some(Testimony { group_number: witness.group_number + 1, ..witness })]
    {
        let found = upgraded(&slots, testimony);
        assert!(found.cursors.is_empty(), "{testimony:?}");
        assert_eq!(found.sequence_reserved, held_by_the_killed().sequence_reserved);
    }
    for slot in slots.keys().filter(|slot| matches!(slot.kind, SlotKind::Hot | SlotKind::Segment)) {
        let mut damaged = slots.clone();
        damaged.get_mut(slot).unwrap().truncate(20);
        assert!(upgraded(&damaged, Some(witness)).cursors.is_empty(), "{slot}");
        damaged.remove(slot);
        let found = upgraded(&damaged, Some(witness));
        assert!(found.cursors.is_empty() || found == without_positions(held_by_the_killed()), "{slot} is gone");
    }
}

/// What stands in the engine beside the slots says which layout it is, and changes last.
#[test]
fn an_engine_that_was_folded_and_not_renumbered_is_upgraded_again() {
    let directory = copied("0002-packed/killed");
    let files = crate::store::log::files::Directory::of(directory.path());
    let engine = Arc::new(Engine::open(&directory.path().join("store")).unwrap());
    let witness = codec::read_witness(&fs::read(directory.path().join("store/witness")).unwrap()).unwrap();
    fold(engine, Some(witness), &files).unwrap();
    assert_eq!(super::load(directory.path()), without_positions(held_by_the_killed()));
}
