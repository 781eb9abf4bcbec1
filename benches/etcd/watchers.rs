//! Measures many watches of all keys while keys change: the number of events that arrive, and their
//! delay.
//!
//! Each watch has its own connection, like each agent. Events are counted without decoding them, so
//! that this process needs little CPU.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Buf, BufMut, Bytes};
use etcd_client::Client;
use meshkeep::internals::model::{EntryKey, Kind};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;

use super::{Contender, Contenders, PREFIX, PREFIX_END};
use crate::processes::Outcome;
use crate::view::data::{self, sized};

/// Number of changes per second.
const RATE: u32 = 1_000;

/// Number of concurrent puts.
const PUTS_AT_ONCE: usize = 16;

/// Number of connections from one loopback address. It is below the limit of connections per
/// client.
const CONNECTIONS_PER_ADDRESS: u32 = 500;

/// Maximum number of watches that are being created at the same time.
const HANDSHAKES_AT_ONCE: usize = 50;

/// Time after the last put in which events may still arrive.
const GRACE: Duration = Duration::from_secs(1);

/// Text before the time stamp in a value.
const MARK: &[u8] = b"\"K8sPodName\":\"t";

/// Number of digits of a time stamp, which is in microseconds since 1970.
const DIGITS: usize = 16;

/// Protobuf number of the field `events` of a `WatchResponse`.
const EVENTS: u64 = 11;

/// Protobuf wire types of the fields of a `WatchResponse`.
const WIRE_VARINT: u64 = 0;
const WIRE_LENGTH: u64 = 2;

/// Counters of all watches together.
#[derive(Default)]
struct Totals {
    created: AtomicUsize,
    events: AtomicU64,
    /// Delay of the oldest event of each message in microseconds, and the number of events in the
    /// message.
    delays: Mutex<Vec<(u64, u64)>>,
}

/// Measures each contender in turn. The changes for the sidecar go to the etcd that it mirrors.
pub(crate) async fn measure(all: &Contenders) -> Outcome<()> {
    let (count, time) = (sized(1_000, 20), sized(Duration::from_secs(10), Duration::from_secs(1)));
    println!("  {count} watches of everything, {RATE} changes/s for {} s:", time.as_secs());
    for (index, contender) in all.iter().enumerate() {
        let source = if index == 0 { &all[2] } else { contender };
        let reported = follow(contender, &source.client, count, time).await?;
        println!("    {}: {reported}", contender.name);
    }
    Ok(())
}

async fn follow(contender: &Contender, source: &Client, count: u32, time: Duration) -> Outcome<String> {
    let (totals, mut watches) = (Arc::new(Totals::default()), JoinSet::new());
    for number in 0..count {
        watches.spawn(watch(contender.url.clone(), number, Arc::clone(&totals)));
        // limit the concurrent handshakes, which are not part of the measurement
        wait_until_created(&totals, &mut watches, (number as usize).saturating_sub(HANDSHAKES_AT_ONCE)).await?;
    }
    wait_until_created(&totals, &mut watches, count as usize).await?;
    let (put, elapsed) = put(source, time).await?;
    let expected = put * u64::from(count);
    let deadline = Instant::now() + GRACE;
    while totals.events.load(Ordering::Relaxed) < expected && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let reported = totals.events.load(Ordering::Relaxed);
    let mut delays = std::mem::take(&mut *totals.delays.lock().unwrap_or_else(PoisonError::into_inner));
    delays.sort_unstable();
    let percentile = |share: u64| {
        let mut left = reported * share / 100;
        let entry = delays.iter().find(|(_, events)| {
            left = left.saturating_sub(*events);
            left == 0
        });
        entry.map_or(f64::NAN, |(delay, _)| *delay as f64 / 1_000.0)
    };
    Ok(format!(
        "{put} puts in {:.1} s, {:.1} % of {expected} events were reported, {:.0}/s; p50 {:.0} ms, p99 {:.0} ms",
        elapsed.as_secs_f64(),
        reported as f64 * 100.0 / expected as f64,
        reported as f64 / elapsed.as_secs_f64(),
        percentile(50),
        percentile(99)
    ))
}

/// Waits until `count` watches exist.
async fn wait_until_created(totals: &Totals, watches: &mut JoinSet<Outcome<()>>, count: usize) -> Outcome<()> {
    while totals.created.load(Ordering::Relaxed) < count {
        // a watch that ends has failed: none ends by itself
        if let Some(ended) = watches.try_join_next() {
            ended??;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Puts ipcache entries at [`RATE`] for `time`, each with a time stamp. Returns their number and
/// the elapsed time.
async fn put(client: &Client, time: Duration) -> Outcome<(u64, Duration)> {
    let (began, mut number, mut putting) = (Instant::now(), 0_u32, JoinSet::new());
    let ips = sized(data::IPS, 10);
    while began.elapsed() < time {
        let (cluster, index) = (number % data::clusters() + 1, number / data::clusters() % ips);
        let key = EntryKey::new(Kind::Ip, data::cluster(cluster), data::address(cluster, index).to_string()).to_string();
        let mut client = client.clone();
        putting.spawn(async move {
            let value = data::ip_value(cluster, index, &format!("t{:0DIGITS$}", now_us()));
            client.put(key, value, None).await
        });
        while putting.len() >= PUTS_AT_ONCE {
            putting.join_next().await.ok_or("nothing is put")???;
        }
        number += 1;
        tokio::time::sleep_until((began + Duration::from_secs(1) * number / RATE).into()).await;
    }
    while let Some(done) = putting.join_next().await {
        done??;
    }
    Ok((u64::from(number), began.elapsed()))
}

/// Runs one watch on its own connection until it is dropped.
async fn watch(url: String, number: u32, totals: Arc<Totals>) -> Outcome<()> {
    let address = Ipv4Addr::new(127, 0, 1, u8::try_from(1 + number / CONNECTIONS_PER_ADDRESS)?);
    let channel = Endpoint::from_shared(url)?.local_address(Some(IpAddr::V4(address))).connect().await?;
    let mut grpc = Grpc::new(channel);
    grpc.ready().await?;
    // the stream of requests must stay open as long as the watch
    let requests = futures_util::StreamExt::chain(futures_util::stream::iter([encode_create_request()]), futures_util::stream::pending());
    let path = http::uri::PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let mut answers = grpc.streaming(tonic::Request::new(requests), path, CountingCodec(Arc::clone(&totals))).await?.into_inner();
    let mut is_created = false;
    while answers.message().await?.is_some() {
        if !std::mem::replace(&mut is_created, true) {
            totals.created.fetch_add(1, Ordering::Relaxed);
        }
    }
    Err("a watch ended".into())
}

/// Encodes a `WatchRequest` for a watch of everything: a `WatchCreateRequest` in field 1, with the
/// key in field 1 and the end of the range in field 2.
fn encode_create_request() -> Bytes {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap_or(u8::MAX)], bytes].concat();
    let create = [field(1, PREFIX.as_bytes()), field(2, PREFIX_END.as_bytes())].concat();
    field(1, &create).into()
}

/// Codec that sends bytes and counts received messages.
struct CountingCodec(Arc<Totals>);

impl Codec for CountingCodec {
    type Encode = Bytes;
    type Decode = ();
    type Encoder = BytesEncoder;
    type Decoder = EventCounter;

    fn encoder(&mut self) -> Self::Encoder {
        BytesEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        EventCounter(Arc::clone(&self.0))
    }
}

struct BytesEncoder;

impl Encoder for BytesEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

struct EventCounter(Arc<Totals>);

impl Decoder for EventCounter {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        let (events, oldest) = events_of(&message).ok_or_else(|| Status::internal("not a watch response"))?;
        if events > 0 {
            self.0.events.fetch_add(events, Ordering::Relaxed);
            if let Some(stamp) = parse_stamp(oldest) {
                let delay = now_us().saturating_sub(stamp);
                self.0.delays.lock().unwrap_or_else(PoisonError::into_inner).push((delay, events));
            }
        }
        Ok(Some(()))
    }
}

/// Returns the number of events in a `WatchResponse`, and the bytes of the first.
fn events_of(mut rest: &[u8]) -> Option<(u64, &[u8])> {
    let (mut count, mut first) = (0, &[][..]);
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        match tag & 7 {
            WIRE_VARINT => drop(varint(&mut rest)?),
            WIRE_LENGTH => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                let (field, after) = rest.split_at_checked(length)?;
                rest = after;
                if tag >> 3 == EVENTS {
                    first = if count == 0 { field } else { first };
                    count += 1;
                }
            }
            _ => return None,
        }
    }
    Some((count, first))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn parse_stamp(event: &[u8]) -> Option<u64> {
    let start = memchr::memmem::find(event, MARK)? + MARK.len();
    std::str::from_utf8(event.get(start..start + DIGITS)?).ok()?.parse().ok()
}
