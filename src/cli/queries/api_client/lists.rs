//! Requests for lists: all pages, one after the other.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ApiClient;
use crate::cli::failure::Failure;
use crate::cli::terminal::progress::ProgressLine;
use crate::cli::terminal::route_commands::name_commands;

/// Maximum bytes of all pages of a list: twice the JSON of the largest mesh (docs/operate/run.md:
/// 3,000,000 keys of some 0.7 KB).
const LIST_BYTES_MAX: usize = 4 << 30;

/// Number of bytes that even an empty page of a list counts for, so that a list of empty pages ends
/// too, after 65,536 pages. The server sends an empty page only after it has searched for 5 s.
const PAGE_BYTES_MIN: usize = 64 << 10;

/// Number of items per page of a list: the API's maximum, because the command reads all pages.
const PAGE_LENGTH_MAX: usize = 10_000;

/// Page of a list whose items are decoded as `T`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageOf<T> {
    items: Vec<T>,
    next_page_token: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
    meta: PagePosition,
}

#[derive(Deserialize)]
struct PagePosition {
    position: String,
}

impl ApiClient {
    /// Requests all pages of a list. Returns its items and the position from which to follow it.
    /// Prints the warnings of the API.
    pub(in crate::cli) async fn list(&self, path: &str, query: &[(&str, &str)]) -> Result<(Vec<Value>, String), Failure> {
        self.list_pages(path, query, usize::MAX).await
    }

    /// Requests the first items of a list. Returns them, and whether there are more.
    pub(in crate::cli::queries) async fn list_first(
        &self,
        path: &str,
        query: &[(&str, &str)],
        count_max: usize,
    ) -> Result<(Vec<Value>, bool), Failure> {
        // one more than that, because the page after a full one may be empty
        let (mut items, _) = self.list_pages(path, query, count_max.saturating_add(1)).await?;
        let has_more = items.len() > count_max;
        items.truncate(count_max);
        Ok((items, has_more))
    }

    /// Requests all pages of a list. Returns its items as `T`, which need less memory than their
    /// JSON.
    pub(in crate::cli) async fn list_as<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<Vec<T>, Failure> {
        self.list_pages(path, query, usize::MAX).await.map(|(items, _)| items)
    }

    /// Requests pages of a list until it has `count_max` items. Returns the items and the position
    /// of the last page.
    async fn list_pages<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        count_max: usize,
    ) -> Result<(Vec<T>, String), Failure> {
        let (mut items, mut token, mut byte_count) = (Vec::new(), None::<String>, 0_usize);
        let limit = count_max.min(PAGE_LENGTH_MAX).to_string();
        let progress = ProgressLine::start(&format!("requesting {}", path.trim_start_matches("/v1/")));
        loop {
            let mut query = query.to_vec();
            query.push(("limit", &limit));
            if let Some(token) = &token {
                query.push(("pageToken", token));
            }
            let answer = self.fetch(path, &query).await?;
            byte_count = add_page_bytes(byte_count, answer.len()).ok_or_else(|| self.too_large("a list", LIST_BYTES_MAX))?;
            let page: PageOf<T> = self.parse(&answer)?;
            items.extend(page.items);
            progress.set_text(format!("{} {} so far", items.len(), path.trim_start_matches("/v1/")));
            if token.is_none() {
                page.warnings.iter().for_each(|warning| crate::cli::print_warning(&name_commands(warning)));
            }
            token = page.next_page_token;
            if token.is_none() || items.len() >= count_max {
                items.truncate(count_max);
                return Ok((items, page.meta.position));
            }
        }
    }
}

/// Returns the size of a list after one more page, in bytes; `None` above [`LIST_BYTES_MAX`].
fn add_page_bytes(byte_count: usize, page_bytes: usize) -> Option<usize> {
    Some(byte_count.saturating_add(page_bytes.max(PAGE_BYTES_MIN))).filter(|sum| *sum <= LIST_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::ANSWER_BYTES_MAX;
    use super::*;

    #[test]
    fn a_list_is_bounded_in_bytes_and_in_empty_pages() {
        let pages = |page_bytes: usize| std::iter::successors(Some(0), |sum| add_page_bytes(*sum, page_bytes)).count() - 1;
        assert_eq!((pages(ANSWER_BYTES_MAX), pages(0)), (64, 65_536));
    }
}
