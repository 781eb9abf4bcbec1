//! Endpoint slices in packed form: a compressed frame, which may be some thousand times larger once
//! decoded.

use std::fmt;
use std::sync::{Arc, OnceLock};

use smol_str::SmolStr;

use crate::model::EndpointSlice;

/// Label with the name of an endpoint slice's service (`k8s.io/api/discovery/v1`,
/// `LabelServiceName`).
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Endpoint slice that is decoded for each reader. The writers of a source decide the decoded size
/// of a frame, so meshkeep keeps only the packed bytes in memory.
#[derive(Clone)]
pub struct PackedSlice {
    value: Arc<[u8]>,
    decode: fn(&[u8]) -> Option<EndpointSlice>,
    decoded_bytes: u64,
    /// Service of the slice, once known.
    service: OnceLock<Option<SmolStr>>,
}

impl PackedSlice {
    /// Wraps a value that was validated, with its decoder and its declared decoded size in bytes.
    #[must_use]
    pub fn new(value: Arc<[u8]>, decode: fn(&[u8]) -> Option<EndpointSlice>, decoded_bytes: u64) -> Self {
        Self { value, decode, decoded_bytes, service: OnceLock::new() }
    }

    /// Records the service of the decoded `slice`, so that [`PackedSlice::service`] need not
    /// decode.
    #[must_use]
    pub fn with_service_of(self, slice: &EndpointSlice) -> Self {
        Self { service: OnceLock::from(slice.service()), ..self }
    }

    /// Decodes the value. It was validated on arrival. A value that cannot be decoded gives an
    /// empty slice, but meshkeep never stores such a value.
    #[must_use]
    pub fn decoded(&self) -> EndpointSlice {
        (self.decode)(&self.value).unwrap_or_default()
    }

    /// Returns the approximate memory that the decoded slice uses, in bytes.
    #[must_use]
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes
    }

    /// Returns the slice's service as `<namespace>/<name>`, if its label names one
    /// (`ParseEndpointSliceID`, Cilium's `pkg/k8s/endpoints.go`).
    #[must_use]
    pub fn service(&self) -> Option<&SmolStr> {
        self.service.get_or_init(|| self.decoded().service()).as_ref()
    }
}

impl EndpointSlice {
    /// Returns the slice's service as `<namespace>/<name>`, if its label names one.
    #[must_use]
    pub fn service(&self) -> Option<SmolStr> {
        let name = self.labels.get(SERVICE_NAME_LABEL).filter(|name| !name.is_empty())?;
        Some(format!("{}/{name}", self.namespace).into())
    }
}

impl PartialEq for PackedSlice {
    /// Compares the decoded values. Equal bytes need no decoding.
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
