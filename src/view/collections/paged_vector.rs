//! A persistent vector of small values in pages: a change copies one page, and the list of pages once for each snapshot.
//!
//! In place of an ordered map: there a change copies each node on its way, of 16 entries and more, and a lookup compares keys in each.

use std::sync::Arc;

/// How many values a page has. A change copies its page, and a fortieth of the list of pages: the writer applies some forty changes to a
/// snapshot at its highest rate. With a thousand values the sum is least from 4 to 8.
const PAGE_LENGTH: usize = 8;

/// Values by number; the default where none was set. Cloning makes a snapshot.
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
    /// The value of a number, if its page was made.
    pub(in crate::view) fn get(&self, number: usize) -> Option<&T> {
        self.pages.get(number / PAGE_LENGTH).map(|page| &page[number % PAGE_LENGTH])
    }

    /// The value of a number, to be changed.
    pub(in crate::view) fn change(&mut self, number: usize) -> &mut T {
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
    fn a_change_is_in_no_copy_that_was_made_before() {
        let mut shelf = PagedVector::<u16>::default();
        let empty = shelf.clone();
        for number in [3, 200, 64, 3] {
            *shelf.change(number) += 1;
        }
        let copy = shelf.clone();
        *shelf.change(64) = 7;
        let of = |shelf: &PagedVector<u16>| [3, 64, 65, 200, 10_000].map(|number| shelf.get(number).copied().unwrap_or_default());
        assert_eq!((of(&empty), of(&copy), of(&shelf)), ([0; 5], [2, 1, 0, 1, 0], [2, 7, 0, 1, 0]));
    }
}
