//! The keys of numbers, references and locks.

use crate::allocator::backend::Id;
use crate::allocator::key::AllocatorKey;
use crate::keys::join;

/// What all of them begin with, and the node that refers.
pub(super) struct Names {
    base: Vec<u8>,
    node: Vec<u8>,
}

impl Names {
    pub(super) fn new(base: &str, node: &str) -> Self {
        Self { base: join(&[base.as_bytes()]), node: node.as_bytes().to_vec() }
    }

    /// `id/<number>`: a number's entry.
    pub(super) fn entry(&self, id: Id) -> Vec<u8> {
        join(&[&self.base, b"id", id.to_string().as_bytes()])
    }

    /// What entries begin with.
    pub(super) fn entries(&self) -> Vec<u8> {
        below(join(&[&self.base, b"id"]))
    }

    /// The number that an entry is of.
    pub(super) fn id_of(&self, entry: &[u8]) -> Option<Id> {
        Id::parse(str::from_utf8(entry.strip_prefix(&*self.entries())?).ok()?)
    }

    /// `value/<labels>/<node>`: this node's reference.
    pub(super) fn reference(&self, key: &AllocatorKey) -> Vec<u8> {
        join(&[&self.base, b"value", key.as_str().as_bytes(), &self.node])
    }

    /// What the references to a key begin with.
    pub(super) fn references_to(&self, key: &AllocatorKey) -> Vec<u8> {
        below(join(&[&self.base, b"value", key.as_str().as_bytes()]))
    }

    /// What all references begin with.
    pub(super) fn references(&self) -> Vec<u8> {
        below(join(&[&self.base, b"value"]))
    }

    /// `locks/<labels>`: the lock for allocating a key.
    pub(super) fn lock_of(&self, key: &AllocatorKey) -> Vec<u8> {
        join(&[&self.base, b"locks", key.as_str().as_bytes()])
    }

    /// `locks/id/<number>`: the lock for collecting a number.
    pub(super) fn lock_of_entry(&self, id: Id) -> Vec<u8> {
        join(&[&self.base, b"locks/id", id.to_string().as_bytes()])
    }

    /// What all locks begin with.
    pub(super) fn locks(&self) -> Vec<u8> {
        below(join(&[&self.base, b"locks"]))
    }

    /// What everything begins with.
    pub(super) fn all(&self) -> Vec<u8> {
        below(self.base.clone())
    }
}

fn below(mut prefix: Vec<u8>) -> Vec<u8> {
    prefix.push(b'/');
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ciliums() {
        let names = Names::new("cilium/state/identities/v1", "10.0.0.7");
        let key = AllocatorKey::from_labels([("k8s:app", "a//b/")]);
        let id = Id::new(65_537).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(text(names.entry(id)), "cilium/state/identities/v1/id/65537");
        assert_eq!(text(names.reference(&key)), "cilium/state/identities/v1/value/k8s:app=a/b/;/10.0.0.7");
        assert_eq!(text(names.lock_of(&key)), "cilium/state/identities/v1/locks/k8s:app=a/b/;");
        assert_eq!(text(names.lock_of_entry(id)), "cilium/state/identities/v1/locks/id/65537");
        assert_eq!(names.id_of(&names.entry(id)), Some(id));
        for other in ["cilium/state/identities/v1/id/", "cilium/state/identities/v1/id/0", "cilium/state/identities/v1/id/x/1", "x"] {
            assert_eq!(names.id_of(other.as_bytes()), None, "{other}");
        }
    }
}
