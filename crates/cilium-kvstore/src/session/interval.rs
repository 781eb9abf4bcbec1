//! Interval between status checks of an etcd (Cilium's `ClusterSizeDependantInterval`).

use std::time::Duration;

/// Base interval while every endpoint is healthy.
const INTERVAL_HEALTHY: Duration = Duration::from_secs(30);
/// Base interval while an endpoint is not healthy.
const INTERVAL_FAILING: Duration = Duration::from_secs(5);

/// Returns the interval: 30 s while every endpoint is healthy, otherwise 5 s. In a cluster of n
/// nodes it is multiplied by ln(1 + n), so that the load on etcd grows more slowly than the number
/// of nodes.
///
/// | nodes | healthy | failing |
/// |---|---|---|
/// | 0 (not known) | 30 s | 5 s |
/// | 1 | 20.8 s | 3.5 s |
/// | 4 | 48.3 s | 8.0 s |
/// | 8 | 65.9 s | 11.0 s |
/// | 32 | 104.9 s | 17.5 s |
/// | 128 | 145.8 s | 24.3 s |
/// | 512 | 187.2 s | 31.2 s |
/// | 2048 | 228.8 s | 38.1 s |
/// | 8192 | 270.3 s | 45.1 s |
#[must_use]
pub fn status_check_interval(nodes: u64, all_healthy: bool) -> Duration {
    let base = if all_healthy { INTERVAL_HEALTHY } else { INTERVAL_FAILING };
    if nodes == 0 {
        return base;
    }
    // exact up to 4 billion nodes
    base.mul_f64(f64::from(u32::try_from(nodes).unwrap_or(u32::MAX)).ln_1p())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in the doc comment of [`status_check_interval`] equals Cilium's except for
    /// rounding.
    #[test]
    fn the_documented_table_is_correct() {
        let tenths = |nodes, healthy| (status_check_interval(nodes, healthy).as_secs_f64() * 10.0).round() / 10.0;
        for (nodes, healthy, failing) in [
            (0, 30.0, 5.0),
            (1, 20.8, 3.5),
            (4, 48.3, 8.0),
            (8, 65.9, 11.0),
            (32, 104.9, 17.5),
            (128, 145.8, 24.3),
            (512, 187.2, 31.2),
            (2048, 228.8, 38.1),
            (8192, 270.3, 45.1),
        ] {
            assert!((tenths(nodes, true) - healthy).abs() < 0.05 && (tenths(nodes, false) - failing).abs() < 0.05, "{nodes}");
        }
    }
}
