//! Small plain values by small numbers, persistent: a change copies one page of them, and the list of pages once for each snapshot.
//!
//! In place of one list of all: at 16 B a chunk a million keys have 20 KB, and some 40 changes to a snapshot are no more than that, but a piece
//! of memory of that size comes of pages that the allocator has given back meanwhile, which took a seventh of a change.

use std::sync::Arc;

/// How many values a page has: of 16 B some 512 B, the like of which the allocator has at hand. A million keys have 43 pages of chunks, so that
/// the list of pages, whose references are counted once for each snapshot, stays short.
const PAGE_LENGTH: usize = 32;

/// Values by number; the default where none was set. Cloning makes a snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct Flat<T> {
    pages: Arc<Vec<Arc<[T; PAGE_LENGTH]>>>,
}

impl<T: Copy + Default> Flat<T> {
    pub(super) fn at(&self, number: usize) -> T {
        self.pages.get(number / PAGE_LENGTH).map_or_else(T::default, |page| page[number % PAGE_LENGTH])
    }

    /// The value of a number, to be changed.
    pub(super) fn change(&mut self, number: usize) -> &mut T {
        let pages = Arc::make_mut(&mut self.pages);
        while pages.len() <= number / PAGE_LENGTH {
            pages.push(Arc::new([T::default(); PAGE_LENGTH]));
        }
        &mut Arc::make_mut(&mut pages[number / PAGE_LENGTH])[number % PAGE_LENGTH]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_in_no_copy_that_was_made_before() {
        let mut flat = Flat::<u16>::default();
        let empty = flat.clone();
        for number in [3, 200, 64, 3] {
            *flat.change(number) += 1;
        }
        let copy = flat.clone();
        *flat.change(64) = 7;
        let of = |flat: &Flat<u16>| [3, 64, 65, 200, 10_000].map(|number| flat.at(number));
        assert_eq!((of(&empty), of(&copy), of(&flat)), ([0; 5], [2, 1, 0, 1, 0], [2, 7, 0, 1, 0]));
    }
}
