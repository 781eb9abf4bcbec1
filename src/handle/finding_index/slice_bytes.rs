//! Decoded sizes of the endpoint slices of each service by cluster, to find services that are too
//! large to merge. Pure.

use imbl::OrdMap;
use smol_str::SmolStr;

use crate::model::{ClusterName, EntryKey};

/// Decoded sizes by service (`<namespace>/<name>`) and cluster. A clone is a cheap snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SliceBytes(OrdMap<(SmolStr, ClusterName), u64>);

impl SliceBytes {
    pub(super) fn add(&mut self, cluster: &ClusterName, service: &SmolStr, bytes: u64) {
        let sum = self.0.entry((service.clone(), cluster.clone())).or_default();
        *sum = sum.saturating_add(bytes);
    }

    pub(super) fn remove(&mut self, cluster: &ClusterName, service: &SmolStr, bytes: u64) {
        let key = (service.clone(), cluster.clone());
        let rest = self.0.get(&key).map_or(0, |sum| sum.saturating_sub(bytes));
        if rest == 0 {
            self.0.remove(&key);
        } else {
            self.0.insert(key, rest);
        }
    }

    /// Returns the sizes of a service's slices by cluster.
    pub(super) fn by_cluster(&self, service: &str) -> impl Iterator<Item = (&ClusterName, u64)> {
        let start = (SmolStr::from(service), EntryKey::lowest().cluster);
        self.0.range(start..).take_while(move |((name, _), _)| name == service).map(|((_, cluster), bytes)| (cluster, *bytes))
    }

    /// Returns the decoded size of all slices of a service.
    pub(super) fn total(&self, service: &str) -> u64 {
        self.by_cluster(service).map(|(_, bytes)| bytes).fold(0, u64::saturating_add)
    }

    /// Returns the services whose slices exceed a limit, in order.
    pub(super) fn larger_than(&self, bytes_max: u64) -> Vec<SmolStr> {
        let (mut large, mut total) = (Vec::<SmolStr>::new(), (SmolStr::default(), 0_u64));
        for ((service, _), bytes) in &self.0 {
            let before = if total.0 == *service { total.1 } else { 0 };
            total = (service.clone(), before.saturating_add(*bytes));
            if total.1 > bytes_max && large.last() != Some(service) {
                large.push(service.clone());
            }
        }
        large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_service_is_the_sum_of_its_slices_in_all_clusters() {
        let [paris, tokyo] = ["paris", "tokyo"].map(|name| ClusterName::parse(name).unwrap());
        let [cart, desk] = ["shop/cart", "till/desk"].map(SmolStr::from);
        let mut sizes = SliceBytes::default();
        for (cluster, service, bytes) in [(&paris, &cart, 40), (&paris, &cart, 30), (&tokyo, &cart, 40), (&tokyo, &desk, 100)] {
            sizes.add(cluster, service, bytes);
        }
        assert_eq!(sizes.by_cluster("shop/cart").collect::<Vec<_>>(), [(&paris, 70), (&tokyo, 40)]);
        assert_eq!((sizes.total("shop/cart"), sizes.total("till/desk"), sizes.total("shop/ca")), (110, 100, 0));
        assert_eq!((sizes.larger_than(109), sizes.larger_than(110)), (vec![cart.clone()], Vec::new()));
        assert_eq!(sizes.larger_than(99), [cart.clone(), desk.clone()]);
        sizes.remove(&paris, &cart, 30);
        sizes.remove(&tokyo, &cart, 40);
        sizes.remove(&tokyo, &desk, 100);
        assert_eq!((sizes.total("shop/cart"), sizes.0.len()), (40, 1));
    }
}
