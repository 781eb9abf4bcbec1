//! The reference program: a server of tokio and hyper that only sends the same shared bytes to all
//! readers at an interval.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{StreamExt, unfold};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use super::Outcome;
use super::child::{answer, now_us, number, orders};

/// Maximum number of ticks that a reader may be behind.
const TICKS_BEHIND_MAX: usize = 256;

/// Returns an event as large as one of the server under test, with a position and a time stamp of
/// the same width.
pub(crate) fn event(sequence: u64, stamp: u64) -> String {
    format!(
        "event: upsert\nid: v1.00000000000000be.{sequence}\ndata: {{\"type\":\"upsert\",\"kind\":\"ipcache\",\"key\":\"cilium/cache/ip/v1/paris/10.0.0.{}\",\"object\":{{\"prefix\":\"10.0.0.{}/32\",\"host\":true,\"cluster\":\"paris\",\"identity\":70000,\"hostIP\":\"172.18.1.2\",\"namespace\":\"shop\",\"podName\":\"t{stamp}\",\"serviceAccount\":\"cart\",\"source\":\"clustermesh\"}},\"meta\":{{\"cluster\":\"paris\",\"revision\":{sequence},\"position\":\"v1.00000000000000be.{sequence}\"}}}}\n\n",
        sequence % 1_000,
        sequence % 1_000,
    )
}

/// Runs the program. It answers the order `feed RATE SECONDS TICK_MS` with the last position.
pub(crate) fn run() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (ticks, _) = broadcast::channel(TICKS_BEHIND_MAX);
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let mut tasks = JoinSet::new();
    tasks.spawn_on(accept(listener, ticks.clone()), runtime.handle());
    answer(&address.to_string());
    let mut sequence = 1;
    for words in orders() {
        let (rate, seconds, tick_ms) = (number(&words, 1)?, number(&words, 2)?, number(&words, 3)?);
        feed(&ticks, &mut sequence, rate, Duration::from_secs(seconds), Duration::from_millis(tick_ms));
        answer(&format!("v1.00000000000000be.{sequence}"));
    }
    Ok(())
}

fn feed(ticks: &broadcast::Sender<Bytes>, sequence: &mut u64, rate: u64, length: Duration, tick: Duration) {
    let (began, first) = (Instant::now(), *sequence);
    while began.elapsed() < length {
        std::thread::sleep(tick);
        let due = u64::try_from(began.elapsed().as_micros()).unwrap_or(0) * rate / 1_000_000;
        let mut text = String::new();
        while *sequence - first < due {
            *sequence += 1;
            // changes are spread evenly over the tick, so they wait for half of it on average
            let age_us = (due - (*sequence - first)) * 1_000_000 / rate;
            text.push_str(&event(*sequence, now_us() - age_us));
        }
        drop(ticks.send(text.into()));
    }
}

async fn accept(listener: tokio::net::TcpListener, ticks: broadcast::Sender<Bytes>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        drop(stream.set_nodelay(true));
        let ticks = ticks.clone();
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
                let answer = respond(&request, &ticks);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).max_buf_size(8 * 1024);
            drop(builder.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

type Body = StreamBody<futures_util::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// Answers a request: `/blast?N` sends N events at once, and any other path the fed events.
fn respond(request: &hyper::Request<Incoming>, ticks: &broadcast::Sender<Bytes>) -> hyper::Response<Body> {
    let synced = Bytes::from_static(b"event: synced\ndata: {}\n\n");
    let wanted = request.uri().query().filter(|_| request.uri().path() == "/blast").and_then(|count| count.parse::<u64>().ok());
    let bytes = match wanted {
        Some(count) => {
            let batch: Bytes = (0..150).map(|sequence| event(1_000_000 + sequence, now_us())).collect::<String>().into();
            let batches = usize::try_from(count / 150).unwrap_or(0);
            futures_util::stream::iter(std::iter::repeat_n(batch, batches).chain([synced])).boxed()
        }
        None => {
            let live = unfold(ticks.subscribe(), |mut ticks| async move { ticks.recv().await.ok().map(|bytes| (bytes, ticks)) });
            futures_util::stream::iter([synced]).chain(live).boxed()
        }
    };
    let mut response = hyper::Response::new(StreamBody::new(bytes.map(|bytes| Ok(Frame::data(bytes))).boxed()));
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("text/event-stream"));
    response
}
