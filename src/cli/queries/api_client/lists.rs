//! Requests for lists: all pages, one after the other.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ApiClient;
use crate::cli::failure::Failure;
use crate::cli::terminal::past_notes::PastSummary;
use crate::cli::terminal::route_commands::name_commands;
use crate::dto::meta::PastMeta;

/// Maximum bytes of all pages of a list: twice the JSON of the largest mesh (docs/operate/run.md:
/// 3,000,000 keys of some 0.7 KB).
const LIST_BYTES_MAX: usize = 4 << 30;

/// Number of bytes that even an empty page of a list counts for, so that a list of empty pages ends
/// too, after 65,536 pages. The server sends an empty page only after it has searched for 5 s.
const PAGE_BYTES_MIN: usize = 64 << 10;

/// Number of items per page of a list: the API's maximum, because the command reads all pages.
const PAGE_LENGTH_MAX: usize = 10_000;

/// Page of a list whose items are decoded as `T`, and its other members as `M`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct PageOf<T, M> {
    pub(in crate::cli) items: Vec<T>,
    pub(in crate::cli) next_page_token: Option<String>,
    #[serde(flatten)]
    pub(in crate::cli) members: M,
}

/// Members of the pages of most lists.
#[derive(Deserialize)]
pub(in crate::cli) struct ListMembers {
    #[serde(default)]
    warnings: Vec<String>,
    meta: PageMeta,
}

#[derive(Deserialize)]
struct PageMeta {
    position: String,
    #[serde(flatten)]
    past: PastMeta,
}

/// All items of a list, and its other members.
pub(in crate::cli) struct WholeList<T> {
    pub(in crate::cli) items: Vec<T>,
    /// Position of the last page, from which to follow the list.
    pub(in crate::cli) position: String,
    /// Time of a list at an earlier time, and what is not known about it.
    pub(in crate::cli) past: PastSummary,
}

/// Requests the pages of a list, one after the other, up to [`LIST_BYTES_MAX`].
pub(in crate::cli) struct PageReader<'a> {
    client: &'a ApiClient,
    path: &'a str,
    query: Vec<(&'a str, &'a str)>,
    token: Option<String>,
    is_complete: bool,
    byte_count: usize,
}

impl<'a> PageReader<'a> {
    pub(in crate::cli) fn new(client: &'a ApiClient, path: &'a str, query: &[(&'a str, &'a str)]) -> Self {
        Self { client, path, query: query.to_vec(), token: None, is_complete: false, byte_count: 0 }
    }

    /// Requests the next page, of at most `limit` items. Returns `None` after the last page.
    pub(in crate::cli) async fn next<T: DeserializeOwned, M: DeserializeOwned>(
        &mut self,
        limit: usize,
    ) -> Result<Option<PageOf<T, M>>, Failure> {
        if self.is_complete {
            return Ok(None);
        }
        let limit = limit.min(PAGE_LENGTH_MAX).to_string();
        let mut query = self.query.clone();
        query.push(("limit", &limit));
        query.extend(self.token.as_deref().map(|token| ("pageToken", token)));
        let answer = self.client.fetch(self.path, &query).await?;
        self.byte_count = add_page_bytes(self.byte_count, answer.len()).ok_or_else(|| self.client.too_large("a list", LIST_BYTES_MAX))?;
        let page: PageOf<T, M> = self.client.parse(&answer)?;
        self.token.clone_from(&page.next_page_token);
        self.is_complete = self.token.is_none();
        Ok(Some(page))
    }
}

impl ApiClient {
    /// Requests all pages of a list. Prints the warnings of the API.
    pub(in crate::cli) async fn list_whole(&self, path: &str, query: &[(&str, &str)]) -> Result<WholeList<Value>, Failure> {
        self.list_pages(path, query, usize::MAX).await
    }

    /// Requests all pages of a list. Returns its items.
    pub(in crate::cli) async fn list(&self, path: &str, query: &[(&str, &str)]) -> Result<Vec<Value>, Failure> {
        self.list_as(path, query).await
    }

    /// Requests the first items of a list. Returns them, and whether there are more.
    pub(in crate::cli::queries) async fn list_first(
        &self,
        path: &str,
        query: &[(&str, &str)],
        count_max: usize,
    ) -> Result<(Vec<Value>, bool), Failure> {
        // one more than that, because the page after a full one may be empty
        let WholeList { mut items, .. } = self.list_pages(path, query, count_max.saturating_add(1)).await?;
        let has_more = items.len() > count_max;
        items.truncate(count_max);
        Ok((items, has_more))
    }

    /// Requests all pages of a list. Returns its items as `T`, which need less memory than their
    /// JSON.
    pub(in crate::cli) async fn list_as<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<Vec<T>, Failure> {
        self.list_pages(path, query, usize::MAX).await.map(|list| list.items)
    }

    /// Requests pages of a list until it has `count_max` items.
    async fn list_pages<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)], count_max: usize) -> Result<WholeList<T>, Failure> {
        let (mut items, mut position, mut past) = (Vec::new(), None, PastSummary::default());
        let name = path.trim_start_matches("/v1/");
        let progress = self.start_progress(&format!("requesting {name}"));
        let mut pages = PageReader::new(self, path, query);
        while items.len() < count_max
            && let Some(PageOf { items: page, members: ListMembers { warnings, meta }, .. }) = pages.next(count_max).await?
        {
            items.extend(page);
            if let Some(progress) = &progress {
                progress.set_text(format!("{} {name} so far", items.len()));
            }
            if position.is_none() && !self.is_silent {
                warnings.iter().for_each(|warning| crate::cli::print_warning(&name_commands(warning)));
            }
            position = Some(meta.position);
            past.add(meta.past);
        }
        items.truncate(count_max);
        Ok(WholeList { items, position: position.unwrap_or_default(), past })
    }
}

/// Returns the size of a list after one more page, in bytes; `None` above [`LIST_BYTES_MAX`].
fn add_page_bytes(byte_count: usize, page_bytes: usize) -> Option<usize> {
    Some(byte_count.saturating_add(page_bytes.max(PAGE_BYTES_MIN))).filter(|sum| *sum <= LIST_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{ANSWER_BYTES_MAX, ServerOptions};
    use super::*;

    #[test]
    fn a_list_is_bounded_in_bytes_and_in_empty_pages() {
        let pages = |page_bytes: usize| std::iter::successors(Some(0), |sum| add_page_bytes(*sum, page_bytes)).count() - 1;
        assert_eq!((pages(ANSWER_BYTES_MAX), pages(0)), (64, 65_536));
    }

    #[tokio::test]
    async fn a_silent_client_shows_no_progress() {
        let server = "http://127.0.0.1:1".to_owned();
        let options = ServerOptions { server, token_file: None, ca_file: None, client_cert: None, client_key: None, option: "--server" };
        let [usual, silent] = [ApiClient::new(&options).unwrap(), ApiClient::new(&options).unwrap().silent()];
        assert!(usual.start_progress("a list").is_some() && silent.start_progress("a list").is_none());
    }
}
