//! Eviction, limits and time-outs of connections, with a paused clock.

use super::*;

fn client(text: &str) -> Client {
    Client::from_ip(text.parse().unwrap())
}

fn limiter(count_max: usize) -> ConnectionLimiter {
    ConnectionLimiter::new(ConnectionLimits { count_max, ..ConnectionLimits::default() })
}

async fn is_evicted(connection: &ConnectionPermit) -> bool {
    timeout(Duration::from_millis(1), connection.evicted()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn the_anonymous_connection_that_has_waited_longest_is_evicted() {
    let limiter = limiter(3);
    let permit = limiter.acquire(client("192.0.2.1")).await.unwrap();
    permit.authenticate();
    let (first, second) = (limiter.acquire(client("192.0.2.2")).await.unwrap(), limiter.acquire(client("192.0.2.3")).await.unwrap());
    let closing = async {
        first.evicted().await;
        drop(first);
    };
    let (third, ()) = tokio::join!(limiter.acquire(client("192.0.2.4")), closing);
    assert!(!is_evicted(&permit).await && !is_evicted(&second).await && third.is_some());
    // a connection with a request in progress is not evicted, and is the last in the queue
    // afterwards
    second.request_started();
    second.request_admitted(false);
    let third = third.unwrap();
    let (fourth, ()) = tokio::join!(limiter.acquire(client("192.0.2.2")), async {
        third.evicted().await;
        drop(third);
    });
    second.request_ended(true);
    assert!(!is_evicted(&second).await && limiter.evicted_count() == 2);
    drop((permit, second, fourth));
    let queue = limiter.queue();
    assert_eq!((limiter.count().0, queue.waiting.len(), queue.clients.len()), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn connections_are_evicted_ahead_of_need() {
    let limiter = limiter(200);
    let mut anonymous = Vec::new();
    // ten of two hundred slots are kept free
    for number in 0..190 {
        anonymous.push(limiter.acquire(client(&format!("192.0.2.{number}"))).await.unwrap());
    }
    assert_eq!(limiter.evicted_count(), 0);
    let began = Instant::now();
    for number in 0..10 {
        // none of the evicted connections has ended when the next one arrives
        anonymous.push(limiter.acquire(client(&format!("192.0.2.{number}"))).await.unwrap());
        assert!(is_evicted(&anonymous[number]).await && !is_evicted(&anonymous[number + 1]).await);
    }
    assert!(began.elapsed() < EVICTION_WAIT_MAX);
    assert_eq!((limiter.count().0, limiter.evicted_count()), (200, 10));
    anonymous.drain(..10);
    assert_eq!((limiter.count().0, limiter.queue().closing), (190, 0));
    // authenticated connections are not evicted: they may use the slots that are kept free too
    let mut authenticated = Vec::new();
    for _ in 0..200 {
        let permit = limiter.acquire(client("192.0.2.1")).await.unwrap();
        permit.authenticate();
        authenticated.push(permit);
        let mut remaining = Vec::new();
        for connection in anonymous {
            if !is_evicted(&connection).await {
                remaining.push(connection);
            }
        }
        anonymous = remaining;
    }
    assert_eq!((limiter.count().0, anonymous.len()), (200, 0));
}

#[tokio::test(start_paused = true)]
async fn a_connection_evicted_during_a_request_is_counted_once() {
    let limiter = limiter(100);
    let closing = limiter.acquire(client("192.0.2.1")).await.unwrap();
    assert!(limiter.evict(EvictionQueue::oldest));
    closing.request_started();
    closing.request_admitted(false);
    closing.request_ended(true);
    assert!(!limiter.evict(EvictionQueue::oldest), "the connection was evicted already");
    drop(closing);
    let queue = limiter.queue();
    assert_eq!((queue.closing, queue.waiting.len(), queue.clients.len()), (0, 0, 0));
}

/// A client that does not read its response times out. A request in progress keeps the
/// connection open.
#[tokio::test(start_paused = true)]
async fn a_connection_with_only_unread_responses_times_out() {
    let limiter = limiter(100);
    let connection = limiter.acquire(client("192.0.2.1")).await.unwrap();
    let times_out = async || timeout(2 * limiter.limits().write, connection.timed_out()).await.is_ok();
    connection.request_started();
    connection.request_started();
    connection.frame_passed();
    assert!(!times_out().await);
    connection.request_ended(false);
    assert!(times_out().await);
}

#[tokio::test(start_paused = true)]
async fn the_limit_per_client_counts_anonymous_connections() {
    let limiter = limiter(1_000);
    let mut authenticated = Vec::new();
    for _ in 0..150 {
        let permit = limiter.acquire(client("192.0.2.1")).await.unwrap();
        permit.authenticate();
        authenticated.push(permit);
    }
    let mut anonymous = Vec::new();
    for _ in 0..100 {
        anonymous.push(limiter.acquire(client("192.0.2.1")).await.unwrap());
    }
    let other = limiter.acquire(client("192.0.2.9")).await.unwrap();
    assert_eq!(limiter.evicted_count(), 0);
    anonymous.push(limiter.acquire(client("192.0.2.1")).await.unwrap());
    assert!(is_evicted(&anonymous[0]).await && !is_evicted(&anonymous[1]).await && !is_evicted(&other).await);
    for connection in &anonymous[1..] {
        connection.request_started();
        connection.request_admitted(false);
    }
    assert!(limiter.acquire(client("192.0.2.1")).await.is_none());
    assert!(limiter.acquire(client("192.0.2.9")).await.is_some());
}
