//! Persistent vector of small values. A change copies one page, and, once per snapshot, the list of
//! pages.
//!
//! In an ordered map, a change would copy each node on its path, with at least 16 entries each.

use std::sync::Arc;

/// Number of values in a page. At the highest rate the committer applies about forty changes per
/// snapshot, so a change costs a page and a fortieth of the list of pages. For a thousand values
/// the sum is lowest with 4 to 8.
const PAGE_LENGTH: usize = 8;

/// Values by number. Unset values are the default. Cloning makes a snapshot in constant time.
#[derive(Debug)]
pub(in crate::view) struct PagedVector<T> {
    pages: Arc<Vec<Arc<[T; PAGE_LENGTH]>>>,
}

impl<T> Default for PagedVector<T> {
    fn default() -> Self {
        Self { pages: Arc::default() }
    }
}

impl<T> Clone for PagedVector<T> {
    fn clone(&self) -> Self {
        Self { pages: Arc::clone(&self.pages) }
    }
}

impl<T: Clone + Default> PagedVector<T> {
    /// Returns the value of a number, if its page exists.
    pub(in crate::view) fn get(&self, number: usize) -> Option<&T> {
        self.pages.get(number / PAGE_LENGTH).map(|page| &page[number % PAGE_LENGTH])
    }

    /// Returns the value of a number for changes.
    pub(in crate::view) fn get_mut(&mut self, number: usize) -> &mut T {
        let pages = Arc::make_mut(&mut self.pages);
        while pages.len() <= number / PAGE_LENGTH {
            pages.push(Arc::new(std::array::from_fn(|_| T::default())));
        }
        &mut Arc::make_mut(&mut pages[number / PAGE_LENGTH])[number % PAGE_LENGTH]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_do_not_change() {
        let mut vector = PagedVector::<u16>::default();
        let empty = vector.clone();
        for number in [3, 200, 64, 3] {
            *vector.get_mut(number) += 1;
        }
        let copy = vector.clone();
        *vector.get_mut(64) = 7;
        let values = |vector: &PagedVector<u16>| [3, 64, 65, 200, 10_000].map(|number| vector.get(number).copied().unwrap_or_default());
        assert_eq!((values(&empty), values(&copy), values(&vector)), ([0; 5], [2, 1, 0, 1, 0], [2, 7, 0, 1, 0]));
    }
}
