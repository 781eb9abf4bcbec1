//! Findings for the random commands. There are only four, so that each is added, updated and
//! removed.

use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;

use crate::model::{Command, FindingChange, FindingKind, FindingObject, Object};

/// Returns a command that sets or removes findings.
pub(super) fn random_command(random: &mut StdRng) -> Command {
    let change = |(subject, count): (u32, u64)| -> FindingChange {
        let clusters = if subject > 1 { vec![super::cluster(subject)] } else { vec![super::cluster(0), super::cluster(1)] };
        let finding = FindingObject::new(FindingKind::HeldEntries, &subject.to_string(), &clusters, "");
        let finding = FindingObject { count: Some(count), ..finding };
        (finding.stream_key(), (count > 0).then(|| Arc::new(Object::Finding(finding.into()))))
    };
    let count = random.random_range(1..4);
    Command::Findings((0..count).map(|_| (random.random_range(0..4), random.random_range(0..3))).map(change).collect())
}
