//! Requests of clients to verify clusters at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// Newest request of each cluster, by name. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct VerificationRequests(Arc<watch::Sender<BTreeMap<String, RequestNumbers>>>);

/// Numbers of the newest requests of a cluster.
#[derive(Debug, Clone, Copy, Default)]
struct RequestNumbers {
    newest: u64,
    /// Number of the newest request to compare values.
    newest_with_values: u64,
}

/// Request to verify a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerificationRequest {
    /// Number of the request, counted from 1. A verification answers all requests with lower
    /// numbers too.
    pub number: u64,
    /// True if values must be compared as well as revisions.
    pub with_values: bool,
}

impl VerificationRequests {
    /// Requests a verification. The caller has checked that the cluster exists, which bounds the
    /// number of names.
    pub fn request(&self, cluster: &str, with_values: bool) {
        self.0.send_modify(|requests| {
            let request = requests.entry(cluster.to_owned()).or_default();
            request.newest += 1;
            if with_values {
                request.newest_with_values = request.newest;
            }
        });
    }

    /// Forgets a cluster that was removed.
    pub fn forget(&self, cluster: &str) {
        self.0.send_if_modified(|requests| {
            requests.remove(cluster);
            false
        });
    }

    /// Returns the number of the newest request of a cluster; 0 if there was none.
    #[must_use]
    pub fn newest(&self, cluster: &str) -> u64 {
        self.0.borrow().get(cluster).map_or(0, |request| request.newest)
    }

    /// Waits for requests with numbers above `answered`, and returns them as one.
    pub async fn wait_after(&self, cluster: &str, answered: u64) -> VerificationRequest {
        let mut requests = self.0.subscribe();
        let is_newer = |requests: &BTreeMap<String, RequestNumbers>| requests.get(cluster).is_some_and(|one| one.newest > answered);
        // the sender is a field of `self`, so the channel stays open
        let numbers = requests.wait_for(is_newer).await.ok().and_then(|requests| requests.get(cluster).copied()).unwrap_or_default();
        VerificationRequest { number: numbers.newest, with_values: numbers.newest_with_values > answered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_verification_answers_all_requests_before_it() {
        let requests = VerificationRequests::default();
        requests.request("paris", false);
        requests.request("paris", true);
        requests.request("tokyo", false);
        assert_eq!(requests.wait_after("paris", 0).await, VerificationRequest { number: 2, with_values: true });
        // the verification was interrupted
        assert_eq!(requests.wait_after("paris", 1).await, VerificationRequest { number: 2, with_values: true });
        requests.request("paris", false);
        assert_eq!(requests.wait_after("paris", 2).await, VerificationRequest { number: 3, with_values: false });
        assert_eq!((requests.newest("paris"), requests.newest("tokyo"), requests.newest("oslo")), (3, 1, 0));
    }
}
