//! Values by small numbers, persistent: a change copies one short page, and the list of pages once for each snapshot.
//!
//! In place of an ordered map: there a change copies nodes of 64 entries, and counting a reference up in each of them costs more than the
//! rest of a change.

use std::sync::Arc;

/// How many values a page has. A change counts references up for each value of its page, and a fortieth of the list of pages: the writer
/// applies some forty changes to a snapshot at its highest rate. With a thousand values the sum is least from 4 to 8.
const PAGE_LENGTH: usize = 8;

/// A page.
type Page<T> = Arc<[Option<Arc<T>>; PAGE_LENGTH]>;

/// Values by number. Cloning makes a snapshot.
#[derive(Debug)]
pub(super) struct Shelf<T> {
    pages: Arc<Vec<Page<T>>>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { pages: Arc::default() }
    }
}

impl<T> Clone for Shelf<T> {
    fn clone(&self) -> Self {
        Self { pages: Arc::clone(&self.pages) }
    }
}

impl<T> Shelf<T> {
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.pages.get(at / PAGE_LENGTH)?[at % PAGE_LENGTH].as_deref()
    }

    pub(super) fn take(&mut self, at: usize) -> Option<Arc<T>> {
        self.get(at)?;
        self.place(at).take()
    }

    pub(super) fn set(&mut self, at: usize, value: T) {
        *self.place(at) = Some(Arc::new(value));
    }

    fn place(&mut self, at: usize) -> &mut Option<Arc<T>> {
        let pages = Arc::make_mut(&mut self.pages);
        while pages.len() <= at / PAGE_LENGTH {
            pages.push(Arc::new([const { None }; PAGE_LENGTH]));
        }
        &mut Arc::make_mut(&mut pages[at / PAGE_LENGTH])[at % PAGE_LENGTH]
    }
}

impl<T: Clone + Default> Shelf<T> {
    /// The value of a number, to be changed; a new one where there is none.
    pub(super) fn change(&mut self, at: usize) -> &mut T {
        Arc::make_mut(self.place(at).get_or_insert_default())
    }
}
