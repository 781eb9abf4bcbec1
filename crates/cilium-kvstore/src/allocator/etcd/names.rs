//! Names of the etcd keys of numbers, references and locks.

use crate::allocator::backend::Id;
use crate::allocator::key::AllocatorKey;
use crate::keys::join;

/// Base path of all keys, and the node that the references belong to.
pub(super) struct KeyNames {
    base: Vec<u8>,
    node: Vec<u8>,
}

impl KeyNames {
    pub(super) fn new(base: &str, node: &str) -> Self {
        Self { base: join(&[base.as_bytes()]), node: node.as_bytes().to_vec() }
    }

    /// Returns `id/<number>`: the key of a number's entry.
    pub(super) fn entry(&self, id: Id) -> Vec<u8> {
        join(&[&self.base, b"id", id.to_string().as_bytes()])
    }

    /// Returns the prefix of all entries.
    pub(super) fn entries(&self) -> Vec<u8> {
        with_slash(join(&[&self.base, b"id"]))
    }

    /// Parses the number in the key of an entry.
    pub(super) fn id_of(&self, entry: &[u8]) -> Option<Id> {
        Id::parse(str::from_utf8(entry.strip_prefix(&*self.entries())?).ok()?)
    }

    /// Returns `value/<labels>/<node>`: the key of this node's reference.
    pub(super) fn reference(&self, key: &AllocatorKey) -> Vec<u8> {
        join(&[&self.base, b"value", key.as_str().as_bytes(), &self.node])
    }

    /// Returns the prefix of all references to a key.
    pub(super) fn references_to(&self, key: &AllocatorKey) -> Vec<u8> {
        with_slash(join(&[&self.base, b"value", key.as_str().as_bytes()]))
    }

    /// Returns the prefix of all references.
    pub(super) fn references(&self) -> Vec<u8> {
        with_slash(join(&[&self.base, b"value"]))
    }

    /// Returns `locks/<labels>`: the lock for allocating a key.
    pub(super) fn lock_of(&self, key: &AllocatorKey) -> Vec<u8> {
        join(&[&self.base, b"locks", key.as_str().as_bytes()])
    }

    /// Returns `locks/id/<number>`: the lock for collecting a number.
    pub(super) fn lock_of_entry(&self, id: Id) -> Vec<u8> {
        join(&[&self.base, b"locks/id", id.to_string().as_bytes()])
    }

    /// Returns the prefix of all locks.
    pub(super) fn locks(&self) -> Vec<u8> {
        with_slash(join(&[&self.base, b"locks"]))
    }

    /// Returns the prefix of all keys.
    pub(super) fn all(&self) -> Vec<u8> {
        with_slash(self.base.clone())
    }
}

fn with_slash(mut prefix: Vec<u8>) -> Vec<u8> {
    prefix.push(b'/');
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_form_of_cilium() {
        let names = KeyNames::new("cilium/state/identities/v1", "10.0.0.7");
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
