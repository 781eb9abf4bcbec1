//! Streams that catch up: their events, their scans and their memory.

use std::ops::ControlFlow;
use std::sync::mpsc;

use axum::extract::FromRef;
use futures_util::{FutureExt, StreamExt};

use super::*;
use crate::admission::Client;
use crate::admission::{Pace, Scanner, Scans};
use crate::api::state::ApiState;
use crate::api::tests::fixture::{Fixture, key, pod, put};
use crate::handle::{Filter, Start};
use crate::model::{Backend, Kind, Object, Port, Sequence, Service};

#[tokio::test]
async fn a_look_gives_little_while_much_waits_for_other_streams() {
    let fixture = Fixture::new();
    for number in 0..1_000 {
        let name = format!("10.20.{}.{}", number / 250, number % 250);
        fixture.change(put(key(Kind::Ip, "paris", &name), pod(&name, 70_000, "172.18.1.2"), 5)).await;
    }
    let state = ApiState::new(fixture.handle.clone(), fixture.stop.clone());
    let reading = state.handle.try_reading().unwrap();
    for (waiting, range) in [(0, 1_000..2_000), (100 << 20, 250..350)] {
        let mut other = state.meters.open(Encoding::Sse, Sequence(1), client(1));
        other.waits(waiting);
        let group = GroupKey { filter: Filter::default(), encoding: Encoding::Sse, patch: false };
        let subscription = Subscription::new(Filter::default(), &Start::Snapshot, &reading);
        let mut reader = Reader::new(Streams::from_ref(&state), group, subscription, state.places.take(Client::Local).unwrap());
        let preamble = reader.next().await.unwrap().unwrap();
        let mut look = vec![reader.next().await.unwrap().unwrap()];
        assert_eq!(preamble, "retry: 2000\n");
        look.extend(reader.ready.chunks.iter().cloned());
        let text = String::from_utf8(look.concat()).unwrap();
        let count = text.matches("event: upsert").count();
        assert!(range.contains(&count), "{count} with {waiting} B waiting");
    }
}

fn client(last: u8) -> Client {
    Client::at(std::net::IpAddr::from([192, 0, 2, last]))
}

/// Forty services of 5,000 backends, 0.6 MB each.
async fn large_services() -> (Fixture, ApiState) {
    let fixture = Fixture::new();
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
fn open(state: &ApiState, client: Client) -> Reader {
    let group = GroupKey { filter: Filter::default(), encoding: Encoding::NdJson, patch: false };
    let subscription = Subscription::new(Filter::default(), &Start::Snapshot, &state.handle.try_reading().unwrap());
    Reader::new(Streams::from_ref(state), group, subscription, state.places.take(client).unwrap())
}

fn held(reader: &Reader) -> usize {
    reader.ready.handed + reader.ready.chunks.iter().map(Bytes::len).sum::<usize>()
}

/// Eight clients that request a snapshot of large services and read nothing, and one that connects
/// when there is no memory left.
#[tokio::test(start_paused = true)]
async fn what_waits_for_readers_that_take_nothing_is_bounded_in_bytes() {
    let (_fixture, state) = large_services().await;
    let mut readers: Vec<Reader> = (1..=8).map(|last| open(&state, client(last))).collect();
    for reader in &mut readers {
        reader.next().await.unwrap().unwrap();
        // a scan and its last event, of 0.6 MB
        assert!((3 << 20..5 << 20).contains(&held(reader)), "{} bytes", held(reader));
    }
    let all: usize = readers.iter().map(held).sum();
    assert_eq!(state.meters.queue_mark().1, all);
    // bytes that the connection has received count until it asks for more
    let mut other = state.meters.open(Encoding::Sse, Sequence(1), client(9));
    other.waits((256 << 20) - all);
    let mut late = open(&state, client(10));
    let first = tokio::time::timeout(Duration::from_secs(5), late.next()).await;
    assert!(first.is_err() && held(&late) == 0, "there is no room");
    drop(readers.pop());
    late.next().await.unwrap().unwrap();
    assert!(held(&late) < 1 << 20, "{} bytes where little room is left", held(&late));
}

/// A reader that reads an event now and then, and so never stalls as long as a socket may.
#[tokio::test(start_paused = true)]
async fn a_reader_that_drips_gives_its_room_up_once_others_lack_it() {
    let (_fixture, state) = large_services().await;
    let mut dripping = open(&state, client(1));
    dripping.next().await.unwrap().unwrap();
    // as slowly as it likes while there is free memory
    tokio::time::advance(TAKEN_WITHIN * 2).await;
    let chunk = dripping.next().await.unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&chunk).contains(r#""error""#));
    let mut other = state.meters.open(Encoding::Sse, Sequence(1), client(2));
    other.waits((256 << 20) - held(&dripping));
    let mut late = open(&state, client(3));
    assert!(tokio::time::timeout(Duration::from_secs(5), late.next()).await.is_err(), "there is no room");
    let end = dripping.next().await.unwrap().unwrap();
    let end = std::str::from_utf8(&end).unwrap();
    assert!(end.starts_with(r#"{"type":"error""#) && end.contains("tooBusy"), "{} bytes", end.len());
    late.next().await.unwrap().unwrap();
    assert!(dripping.next().await.is_none());
    assert_eq!(held(&dripping), 0);
}

/// An API with one thread for long scans.
fn with_one_thread(fixture: &Fixture) -> ApiState {
    ApiState::new(fixture.handle.clone(), fixture.stop.clone()).with(|shared| shared.scans = Scans::on_threads(Pace::default(), 1))
}

/// Occupies the thread until it is told to end, or is dropped.
async fn busy(scanner: &Scanner) -> (mpsc::SyncSender<()>, impl Future<Output = ()>) {
    let (began, begins) = tokio::sync::oneshot::channel();
    // capacity for one message: the end
    let (end, ends) = mpsc::sync_channel(1);
    let mut began = Some(began);
    let mut work = Box::pin(scanner.run(move |_| {
        began.take().map(|began| began.send(()));
        ends.recv().ok();
        ControlFlow::Break(())
    }));
    tokio::select! {
        () = &mut work => unreachable!("it is told to end later"),
        begun = begins => begun.unwrap(),
    }
    (end, work)
}

/// The async threads serve streams that lack little. A snapshot is for the threads of scans, and
/// its stream may be closed meanwhile.
#[tokio::test]
async fn a_stream_that_is_behind_waits_for_its_turn_and_none_that_is_closed_has_one() {
    let fixture = Fixture::new();
    let state = with_one_thread(&fixture);
    let scanner = state.scans.enter(client(9)).unwrap();
    let (end, work) = busy(&scanner).await;
    let mut readers = [open(&state, client(1)), open(&state, client(2))];
    for reader in &mut readers {
        assert!(reader.next().now_or_never().is_none(), "a snapshot is made while somebody has the thread");
    }
    let group = GroupKey { filter: Filter::default(), encoding: Encoding::NdJson, patch: false };
    let subscription = Subscription::new(Filter::default(), &Start::Now, &state.handle.try_reading().unwrap());
    let mut current = Reader::new(Streams::from_ref(&state), group, subscription, state.places.take(client(3)).unwrap());
    let synced = current.next().now_or_never().expect("nothing is lacking, so nothing takes long").unwrap().unwrap();
    assert!(synced.starts_with(b"{\"type\":\"synced\""));
    let [mut waits, closed] = readers;
    drop(closed);
    end.send(()).unwrap();
    work.await;
    let snapshot = waits.next().await.unwrap().unwrap();
    assert!(snapshot.starts_with(b"{\"type\":\"reset\""));
    scanner.once(|| ()).await;
    // its own, and those above and below
    let looks = state.scans.spent().rows;
    assert_eq!(looks, 2, "the look of the stream that was closed, too");
}

#[tokio::test]
async fn a_stream_that_waits_for_its_turn_ends_with_the_process() {
    let fixture = Fixture::new();
    let state = with_one_thread(&fixture);
    let scanner = state.scans.enter(client(9)).unwrap();
    let (_end, _work) = busy(&scanner).await;
    let mut reader = open(&state, client(1));
    let next = reader.next();
    tokio::pin!(next);
    assert!((&mut next).now_or_never().is_none());
    fixture.stop.cancel();
    let end = next.await.unwrap().unwrap();
    assert!(std::str::from_utf8(&end).unwrap().contains("stopping"));
}
