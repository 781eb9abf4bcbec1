//! Identities: `…/id/<number>` with their labels as text, from Cilium's `pkg/labels` and the checks of `pkg/identity/cache/allocator.go`.

use super::{ALLOCATED_IDENTITY_MIN, Context, quoted};
use crate::model::{ClusterId, Identity, LabelSet};

/// The label that says which cluster an identity belongs to (`PolicyLabelCluster` of `pkg/k8s/apis/cilium.io`).
const CLUSTER_LABEL: &str = "k8s:io.cilium.k8s.policy.cluster";

/// Reads and checks an identity; `number` is what its key calls it.
pub(super) fn decode(number: &str, value: &[u8], context: &Context<'_>) -> Result<Identity, String> {
    let id = parse_number(number)?;
    if id < ALLOCATED_IDENTITY_MIN {
        return Err(format!("identity {id} in the key is reserved, no cluster may allocate it"));
    }
    if let Some(range) = context.identity_range().filter(|range| !range.contains(&id)) {
        return Err(format!("identity {id} in the key is outside {} to {} of cluster {}", range.start(), range.end(), context.cluster));
    }
    let text = str::from_utf8(value).map_err(|_| "labels are not UTF-8")?;
    let labels = parse_labels(text);
    if labels.is_empty() {
        return Err("labels are empty".into());
    }
    match labels.get(CLUSTER_LABEL) {
        Some(cluster) => context.check_cluster(&format!("label {CLUSTER_LABEL}"), cluster)?,
        None if context.cluster_id == ClusterId(0) => {}
        None => return Err(format!("label {CLUSTER_LABEL} is missing")),
    }
    Ok(Identity { id, labels })
}

/// A number as Cilium prints it, so that no two keys mean one identity.
fn parse_number(text: &str) -> Result<u32, String> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    let number = if canonical { text.parse().ok() } else { None };
    number.ok_or_else(|| format!("{} in the key is not an identity's number", quoted(text)))
}

/// `source:key=value;…` by `source:key`. Nothing is escaped: the first `:` ends the source, the first `=` after it the key; order
/// says nothing. A label without a key is skipped, one without a source is `unspec` (`pkg/labels`, `ParseLabel`).
fn parse_labels(text: &str) -> LabelSet {
    let mut labels = LabelSet::new();
    for label in text.split(';') {
        let (source, rest) = label.split_once(':').unwrap_or(("", label));
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        if key.is_empty() {
            continue;
        }
        let source = if source.is_empty() { "unspec" } else { source };
        labels.insert(format!("{source}:{key}"), value.to_owned());
    }
    labels
}
