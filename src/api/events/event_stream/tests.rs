//! Streams that catch up: their events, their scans and their memory.

use std::ops::ControlFlow;
use std::sync::mpsc;

use axum::extract::FromRef;
use futures_util::{FutureExt, StreamExt};

use super::*;
use crate::admission::Client;
use crate::admission::{ScanExecutor, ScanLimits, Scanner};
use crate::api::state::ApiState;
use crate::api::tests::fixture::{ApiFixture, key, pod, put};
use crate::handle::{Filter, StreamStart};
use crate::model::{Backend, Kind, Object, Port, Sequence, Service};

#[tokio::test]
async fn a_scan_is_short_while_many_bytes_wait_for_other_streams() {
    let fixture = ApiFixture::new();
    for number in 0..1_000 {
        let name = format!("10.20.{}.{}", number / 250, number % 250);
        fixture.change(put(key(Kind::Ip, "paris", &name), pod(&name, 70_000, "172.18.1.2"), 5)).await;
    }
    let state = ApiState::new(fixture.handle.clone(), fixture.stop.clone());
    let reading = state.handle.try_reading().unwrap();
    for (waiting, range) in [(0, 1_000..2_000), (100 << 20, 250..350)] {
        let mut other = state.stream_metrics.open(Encoding::Sse, Sequence(1), client(1));
        other.add_waiting(waiting);
        let group = GroupKey { filter: Filter::default(), encoding: Encoding::Sse, patch: false };
        let subscription = Subscription::new(Filter::default(), &StreamStart::Snapshot, &reading);
        let mut stream = EventStream::new(
            StreamContext::from_ref(&state),
            group,
            subscription,
            state.stream_limiter.try_acquire(Client::Local).unwrap(),
        );
        let preamble = stream.next().await.unwrap().unwrap();
        let mut chunks = vec![stream.next().await.unwrap().unwrap()];
        assert_eq!(preamble, "retry: 2000\n");
        chunks.extend(stream.queue.chunks.iter().cloned());
        let text = String::from_utf8(chunks.concat()).unwrap();
        let count = text.matches("event: upsert").count();
        assert!(range.contains(&count), "{count} with {waiting} B waiting");
    }
}

fn client(last: u8) -> Client {
    Client::from_ip(std::net::IpAddr::from([192, 0, 2, last]))
}

/// Forty services of 5,000 backends, 0.6 MB each.
async fn large_services() -> (ApiFixture, ApiState) {
    let fixture = ApiFixture::new();
    for number in 0..40 {
        let backend = |number: u32| Backend {
            ip: std::net::Ipv4Addr::from(number).into(),
            ports: [Port { name: "http".to_owned(), protocol: "TCP".to_owned(), port: 80 }].into(),
            hostname: String::new(),
            zone: None,
        };
        let service = Service { backends: (0..5_000).map(backend).collect(), ..Service::default() };
        fixture.change(put(key(Kind::Service, "paris", &format!("shop/s{number}")), Object::Service(service), number)).await;
    }
    let state = ApiState::new(fixture.handle.clone(), fixture.stop.clone());
    (fixture, state)
}

/// Opens a stream of everything.
fn open(state: &ApiState, client: Client) -> EventStream {
    let group = GroupKey { filter: Filter::default(), encoding: Encoding::NdJson, patch: false };
    let subscription = Subscription::new(Filter::default(), &StreamStart::Snapshot, &state.handle.try_reading().unwrap());
    EventStream::new(StreamContext::from_ref(state), group, subscription, state.stream_limiter.try_acquire(client).unwrap())
}

fn unsent_bytes(stream: &EventStream) -> usize {
    stream.queue.handed_bytes + stream.queue.chunks.iter().map(Bytes::len).sum::<usize>()
}

/// Eight clients that request a snapshot of large services and read nothing, and one that connects
/// when there is no memory left.
#[tokio::test(start_paused = true)]
async fn bytes_that_wait_for_stalled_readers_are_bounded() {
    let (_fixture, state) = large_services().await;
    let mut readers: Vec<EventStream> = (1..=8).map(|last| open(&state, client(last))).collect();
    for stream in &mut readers {
        stream.next().await.unwrap().unwrap();
        // the size limit of a scan, plus its last event of 0.6 MB
        assert!((3 << 20..5 << 20).contains(&unsent_bytes(stream)), "{} bytes", unsent_bytes(stream));
    }
    let all: usize = readers.iter().map(unsent_bytes).sum();
    assert_eq!(state.stream_metrics.queue_mark().1, all);
    // bytes that were passed to the connection count as waiting until it asks for more
    let mut other = state.stream_metrics.open(Encoding::Sse, Sequence(1), client(9));
    other.add_waiting((256 << 20) - all);
    let mut late = open(&state, client(10));
    let first = tokio::time::timeout(Duration::from_secs(5), late.next()).await;
    assert!(first.is_err() && unsent_bytes(&late) == 0, "no memory is free");
    drop(readers.pop());
    late.next().await.unwrap().unwrap();
    assert!(unsent_bytes(&late) < 1 << 20, "{} bytes while little memory is free", unsent_bytes(&late));
}

/// A reader that reads an event from time to time, and so never runs into the write timeout.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_disconnected_when_memory_is_short() {
    let (_fixture, state) = large_services().await;
    let mut slow = open(&state, client(1));
    slow.next().await.unwrap().unwrap();
    // slow reading is allowed while memory is free
    tokio::time::advance(READ_TIME_MAX * 2).await;
    let chunk = slow.next().await.unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&chunk).contains(r#""error""#));
    let mut other = state.stream_metrics.open(Encoding::Sse, Sequence(1), client(2));
    other.add_waiting((256 << 20) - unsent_bytes(&slow));
    let mut late = open(&state, client(3));
    assert!(tokio::time::timeout(Duration::from_secs(5), late.next()).await.is_err(), "no memory is free");
    let end = slow.next().await.unwrap().unwrap();
    let end = std::str::from_utf8(&end).unwrap();
    assert!(end.starts_with(r#"{"type":"error""#) && end.contains("tooBusy"), "{} bytes", end.len());
    late.next().await.unwrap().unwrap();
    assert!(slow.next().await.is_none());
    assert_eq!(unsent_bytes(&slow), 0);
}

/// An API with one thread for long scans.
fn with_one_thread(fixture: &ApiFixture) -> ApiState {
    ApiState::new(fixture.handle.clone(), fixture.stop.clone())
        .with(|shared| shared.scans = ScanExecutor::with_threads(ScanLimits::default(), 1))
}

/// Occupies the scan thread until a message is sent or the sender is dropped.
async fn occupy_thread(scanner: &Scanner) -> (mpsc::SyncSender<()>, impl Future<Output = ()>) {
    let (began, begins) = tokio::sync::oneshot::channel();
    // capacity for one message, which ends the work
    let (end, ends) = mpsc::sync_channel(1);
    let mut began = Some(began);
    let mut work = Box::pin(scanner.run(move |_| {
        began.take().map(|began| began.send(()));
        ends.recv().ok();
        ControlFlow::Break(())
    }));
    tokio::select! {
        () = &mut work => unreachable!("the message follows later"),
        begun = begins => begun.unwrap(),
    }
    (end, work)
}

/// Streams that lack only a few changes are served on the async threads. A snapshot is scanned on
/// the scan threads, and its stream may be closed while it waits.
#[tokio::test]
async fn a_stream_waits_for_its_slice_and_does_not_scan_once_closed() {
    let fixture = ApiFixture::new();
    let state = with_one_thread(&fixture);
    let scanner = state.scans.admit(client(9)).unwrap();
    let (end, work) = occupy_thread(&scanner).await;
    let mut readers = [open(&state, client(1)), open(&state, client(2))];
    for stream in &mut readers {
        assert!(stream.next().now_or_never().is_none(), "a snapshot is encoded while the thread is busy");
    }
    let group = GroupKey { filter: Filter::default(), encoding: Encoding::NdJson, patch: false };
    let subscription = Subscription::new(Filter::default(), &StreamStart::Now, &state.handle.try_reading().unwrap());
    let mut current =
        EventStream::new(StreamContext::from_ref(&state), group, subscription, state.stream_limiter.try_acquire(client(3)).unwrap());
    let synced = current.next().now_or_never().expect("nothing is missing, so no scan is queued").unwrap().unwrap();
    assert!(synced.starts_with(b"{\"type\":\"synced\""));
    let [mut waiting, closed] = readers;
    drop(closed);
    end.send(()).unwrap();
    work.await;
    let snapshot = waiting.next().await.unwrap().unwrap();
    assert!(snapshot.starts_with(b"{\"type\":\"reset\""));
    scanner.run_once(|| ()).await;
    // one scan of the waiting stream, and the `run_once` above
    let scans = state.scans.total_usage().rows;
    assert_eq!(scans, 2, "the closed stream scanned too");
}

#[tokio::test]
async fn a_stream_with_a_queued_scan_ends_on_shutdown() {
    let fixture = ApiFixture::new();
    let state = with_one_thread(&fixture);
    let scanner = state.scans.admit(client(9)).unwrap();
    let (_end, _work) = occupy_thread(&scanner).await;
    let mut stream = open(&state, client(1));
    let next = stream.next();
    tokio::pin!(next);
    assert!((&mut next).now_or_never().is_none());
    fixture.stop.cancel();
    let end = next.await.unwrap().unwrap();
    assert!(std::str::from_utf8(&end).unwrap().contains("stopping"));
}
