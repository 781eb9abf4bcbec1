//! Identities: `…/id/<number>` with their labels as text, from Cilium's `pkg/labels` and the checks
//! of `pkg/identity/cache/allocator.go`.

use super::{Context, quoted};
use crate::model::{ALLOCATED_IDENTITY_MIN, CLUSTER_LABEL, ClusterId, Identity, IdentityLabels};

/// Source of labels that mean the same in every cluster (`LabelSourceReserved` in `pkg/labels`).
const SOURCE_RESERVED: &str = "reserved";
/// Prefix of a reserved label's key if it is written without a source
/// (`LabelSourceReservedKeyPrefix`).
const RESERVED_KEY_PREFIX: &str = "reserved.";
/// Source of a label that names none (`LabelSourceUnspec`).
const SOURCE_UNSPEC: &str = "unspec";

/// Decodes and checks an identity. `number` is the last part of its key.
pub(super) fn decode(number: &str, value: &[u8], context: &Context<'_>) -> Result<Identity, String> {
    let id = parse_number(number)?;
    if id < ALLOCATED_IDENTITY_MIN {
        return Err(format!("identity {id} in the key is reserved, no cluster may allocate it"));
    }
    if let Some(range) = context.range_if_outside(id) {
        return Err(format!("identity {id} in the key is outside {} to {} of cluster {}", range.start(), range.end(), context.cluster));
    }
    // Go accepts any bytes here; bytes that are not UTF-8 cannot be shown as text
    let labels = parse_labels(&String::from_utf8_lossy(value));
    if labels.is_empty() {
        return Err("labels are empty".into());
    }
    match labels.get(CLUSTER_LABEL) {
        // the usual case, without formatting an error
        Some(cluster) if cluster == context.cluster.as_str() => {}
        Some(cluster) => context.check_cluster(&format!("label {CLUSTER_LABEL}"), cluster)?,
        None if context.cluster_id == ClusterId(0) => {}
        None => return Err(format!("label {CLUSTER_LABEL} is missing")),
    }
    Ok(Identity { id, labels })
}

/// Parses decimal digits as `strconv.ParseUint` does. Leading zeros are allowed, so several keys
/// can name one identity (`keyToID` in `pkg/kvstore/allocator/allocator.go`).
pub(super) fn parse_number(text: &str) -> Result<u32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| format!("{} in the key is not an identity number", quoted(text)))
}

/// Parses `source:key=value;…` into labels by `source:key`. Nothing is escaped, the order has no
/// meaning, and a label without a key is skipped (`NewLabelArrayFromSortedList` in Cilium's
/// `pkg/labels/array.go`).
fn parse_labels(text: &str) -> IdentityLabels {
    let labels = text.split(';').map(parse_label).filter(|label| !label.key.is_empty());
    IdentityLabels::new(labels.map(|label| (label.source, label.key, label.value)))
}

struct ParsedLabel<'a> {
    source: &'a str,
    key: &'a str,
    value: &'a str,
}

/// Parses one label as `ParseLabel` in Cilium's `pkg/labels/labels.go` does. The first `:` ends the
/// source, and the first `=` after it ends the key. `$key` and `reserved.key` mean `reserved:key`;
/// so does `reserved:=key`. A label without a source gets `unspec`.
fn parse_label(text: &str) -> ParsedLabel<'_> {
    let (source, rest) = match (text.strip_prefix('$'), text.split_once(':')) {
        (Some(rest), _) => (SOURCE_RESERVED, rest),
        (None, Some(("", rest))) => (SOURCE_UNSPEC, rest),
        (None, Some(parts)) => parts,
        (None, None) => text.strip_prefix(RESERVED_KEY_PREFIX).map_or((SOURCE_UNSPEC, text), |rest| (SOURCE_RESERVED, rest)),
    };
    let (key, value) = match rest.split_once('=') {
        Some(("", key)) if source == SOURCE_RESERVED => (key, ""),
        Some(parts) => parts,
        None => (rest, ""),
    };
    ParsedLabel { source, key, value }
}
