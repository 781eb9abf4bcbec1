//! An endpoint slice as it came: a compressed frame, which may be some thousand times as large once it is decoded.

use std::fmt;
use std::sync::{Arc, OnceLock};

use smol_str::SmolStr;

use crate::model::EndpointSlice;

/// The label that names the service of an endpoint slice (`k8s.io/api/discovery/v1`, `LabelServiceName`).
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// An endpoint slice that is decoded where it is asked for, and again for the next reader: the writers of a source decide what a frame unpacks
/// to, so what is held at rest is what came.
#[derive(Clone)]
pub struct PackedSlice {
    value: Arc<[u8]>,
    decode: fn(&[u8]) -> Option<EndpointSlice>,
    decoded_bytes: u64,
    /// The service that it is of, once that is known.
    service: OnceLock<Option<SmolStr>>,
}

impl PackedSlice {
    /// A slice of a value that was found good, with what decodes it and how many bytes it is said to have then.
    #[must_use]
    pub fn new(value: Arc<[u8]>, decode: fn(&[u8]) -> Option<EndpointSlice>, decoded_bytes: u64) -> Self {
        Self { value, decode, decoded_bytes, service: OnceLock::new() }
    }

    /// A slice that is not decoded to be asked for its service: that is known.
    #[must_use]
    pub fn noting(self, slice: &EndpointSlice) -> Self {
        Self { service: OnceLock::from(slice.service()), ..self }
    }

    /// What the value means. It was found good when it came; of one that is not (no value of a store of ours), an empty slice.
    #[must_use]
    pub fn decoded(&self) -> EndpointSlice {
        (self.decode)(&self.value).unwrap_or_default()
    }

    /// About how much memory it takes while it is decoded.
    #[must_use]
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes
    }

    /// The service that it is of, as `<namespace>/<name>`, if its label names one (`ParseEndpointSliceID`, Cilium's `pkg/k8s/endpoints.go`).
    #[must_use]
    pub fn service(&self) -> Option<&SmolStr> {
        self.service.get_or_init(|| self.decoded().service()).as_ref()
    }
}

impl EndpointSlice {
    /// The service that it is of, as `<namespace>/<name>`, if its label names one.
    #[must_use]
    pub fn service(&self) -> Option<SmolStr> {
        let name = self.labels.get(SERVICE_NAME_LABEL).filter(|name| !name.is_empty())?;
        Some(format!("{}/{name}", self.namespace).into())
    }
}

impl PartialEq for PackedSlice {
    /// By what the values mean; equal bytes need no look at that.
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value || self.decoded() == other.decoded()
    }
}

impl Eq for PackedSlice {}

impl fmt::Debug for PackedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.decoded().fmt(f)
    }
}
