//! Measures lists of all keys, and reads of single keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};
use meshkeep::internals::model::EntryKey;
use tokio::task::JoinSet;

use super::{Contender, Contenders, PREFIX, PREFIX_END, median, report, rounds};
use crate::processes::Outcome;
use crate::sync::source::KINDS;
use crate::view::data::{self, sized};

/// Number of keys in a page.
const PAGE_KEYS: i64 = 1_000;

/// Maximum number of keys for which an etcd is listed completely. An etcd counts all remaining keys
/// for each page, which is too slow for more keys: then pages are sampled evenly over the range,
/// and their mean is reported.
const WHOLE_KEYS_MAX: usize = 50_000;

/// Number of sampled pages.
const PAGES_SAMPLED: usize = 25;

/// Number of ranges that are listed concurrently.
const RANGES_AT_ONCE: usize = 4;

/// Number of concurrent reads of single keys.
const READS_AT_ONCE: usize = 16;

/// Step between two read keys, so that all keys are read in a seemingly random order: a prime.
const STRIDE: usize = 7_919;

/// Returns all keys, in order.
pub(crate) async fn every_key(all: &Contenders) -> Outcome<Vec<Vec<u8>>> {
    let options = GetOptions::new().with_range(PREFIX_END).with_keys_only();
    // one answer of some 90 MB
    let listed = all[0].client.kv_client().max_decoding_message_size(usize::MAX).get(PREFIX, Some(options)).await?;
    Ok(listed.kvs().iter().map(|kv| kv.key().to_vec()).collect())
}

/// Measures every figure several times, with all contenders in turn.
pub(crate) async fn measure(all: &Contenders, keys: &[Vec<u8>]) -> Outcome<()> {
    let ranges = ranges();
    let shared: Arc<[Vec<u8>]> = keys.to_vec().into();
    let (mut pages, mut streams, mut parts, mut reads) = (columns(), columns(), columns(), columns());
    for _ in 0..rounds() {
        for (index, contender) in all.iter().enumerate() {
            pages[index].push(list_in_pages(contender, keys, index > 0).await?);
            // etcd 3.5 has no streams of ranges
            if index != 1 {
                streams[index].push(list_as_stream(contender, keys.len()).await?);
            }
            parts[index].push(list_by_scope(contender, &ranges, keys.len()).await?);
            reads[index].push(read_single_keys(contender, &shared).await?);
        }
    }
    let medians = |columns: [Vec<f64>; 3]| columns.map(median);
    let streams = medians(streams);
    report("one range in pages of 1,000, keys/s", &medians(pages), true);
    report("one stream, keys/s", &[streams[0], streams[2]], true);
    report("by cluster and kind, 4 ranges at once, keys/s", &medians(parts), true);
    report("single keys, 16 at once, reads/s", &medians(reads), true);
    Ok(())
}

const fn columns() -> [Vec<f64>; 3] {
    [const { Vec::new() }; 3]
}

fn rate(count: usize, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

/// Measures keys per second of a list in pages at one revision.
async fn list_in_pages(contender: &Contender, keys: &[Vec<u8>], is_etcd: bool) -> Outcome<f64> {
    let mut client = contender.client.clone();
    let mut page = async |from: &[u8], revision: i64| {
        let options = GetOptions::new().with_range(PREFIX_END).with_limit(PAGE_KEYS).with_revision(revision);
        client.get(from, Some(options)).await
    };
    if is_etcd && keys.len() > WHOLE_KEYS_MAX {
        let revision = page(PREFIX.as_bytes(), 0).await?.header().ok_or("no header")?.revision();
        let (began, mut count) = (Instant::now(), 0);
        for sample in 0..PAGES_SAMPLED {
            // the middle of each part of the range
            let from = &keys[(2 * sample + 1) * keys.len() / (2 * PAGES_SAMPLED)];
            count += page(from, revision).await?.kvs().len();
        }
        return Ok(rate(count, began.elapsed()));
    }
    let (began, mut count, mut revision, mut from) = (Instant::now(), 0, 0, PREFIX.as_bytes().to_vec());
    loop {
        let listed = page(&from, revision).await?;
        count += listed.kvs().len();
        if revision == 0 {
            revision = listed.header().ok_or("no header")?.revision();
        }
        match listed.kvs().last().filter(|_| listed.more()) {
            Some(last) => from = [last.key(), b"\0"].concat(),
            None => break,
        }
    }
    check_count(contender, count, keys.len())?;
    Ok(rate(count, began.elapsed()))
}

/// Measures keys per second of one stream of ranges.
async fn list_as_stream(contender: &Contender, keys: usize) -> Outcome<f64> {
    let (began, mut count) = (Instant::now(), 0);
    let options = GetOptions::new().with_range(PREFIX_END);
    // etcd's chunks exceed the default limit of clients
    let mut stream = contender.client.kv_client().max_decoding_message_size(usize::MAX).get_stream(PREFIX, Some(options)).await?;
    while let Some(chunk) = stream.message().await? {
        count += chunk.kvs().len();
    }
    check_count(contender, count, keys)?;
    Ok(rate(count, began.elapsed()))
}

/// Returns the range of each kind of each cluster.
fn ranges() -> Arc<[(String, String)]> {
    let range = |number: u32, kind| {
        let first = EntryKey::new(kind, data::cluster(number), "").to_string();
        let end = format!("{}0", first.trim_end_matches('/'));
        (first, end)
    };
    (1..=data::clusters()).flat_map(|number| KINDS.map(|kind| range(number, kind))).collect()
}

/// Measures keys per second of concurrent lists by cluster and kind.
async fn list_by_scope(contender: &Contender, ranges: &Arc<[(String, String)]>, keys: usize) -> Outcome<f64> {
    let (began, next) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut listing = JoinSet::new();
    for _ in 0..RANGES_AT_ONCE {
        let (mut client, ranges, next) = (contender.client.clone(), Arc::clone(ranges), Arc::clone(&next));
        listing.spawn(async move {
            let mut count = 0;
            while let Some((first, end)) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                count += list(&mut client, first, end).await?;
            }
            Ok::<usize, etcd_client::Error>(count)
        });
    }
    let mut count = 0;
    while let Some(listed) = listing.join_next().await {
        count += listed??;
    }
    check_count(contender, count, keys)?;
    Ok(rate(count, began.elapsed()))
}

async fn list(client: &mut Client, first: &str, end: &str) -> Result<usize, etcd_client::Error> {
    let (mut from, mut count) = (first.as_bytes().to_vec(), 0);
    loop {
        let page = client.get(from, Some(GetOptions::new().with_range(end).with_limit(PAGE_KEYS))).await?;
        count += page.kvs().len();
        match page.kvs().last().filter(|_| page.more()) {
            Some(last) => from = [last.key(), b"\0"].concat(),
            None => return Ok(count),
        }
    }
}

/// Measures reads of single keys per second.
async fn read_single_keys(contender: &Contender, keys: &Arc<[Vec<u8>]>) -> Outcome<f64> {
    let (began, time) = (Instant::now(), sized(Duration::from_secs(3), Duration::from_millis(300)));
    let mut reading = JoinSet::new();
    for reader in 0..READS_AT_ONCE {
        let (mut client, keys, name) = (contender.client.clone(), Arc::clone(keys), contender.name);
        reading.spawn(async move {
            let (mut index, mut count) = (reader * keys.len() / READS_AT_ONCE, 0);
            while began.elapsed() < time {
                index = (index + STRIDE) % keys.len();
                let answer = client.get(keys[index].as_slice(), None).await?;
                if answer.kvs().len() != 1 {
                    return Err(format!("{name} lacks a key").into());
                }
                count += 1;
            }
            Outcome::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(read) = reading.join_next().await {
        count += read??;
    }
    Ok(rate(count, began.elapsed()))
}

fn check_count(contender: &Contender, found: usize, keys: usize) -> Outcome<()> {
    if found == keys { Ok(()) } else { Err(format!("{} listed {found} keys of {keys}", contender.name).into()) }
}
