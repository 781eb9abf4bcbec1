//! Bodies of requests: limits the memory of incomplete messages and the size of transactions.
//!
//! Bytes of an incomplete message are charged to its client. A transaction is retained until it is
//! complete, so that its operations can be counted before tonic decodes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Request;
use http_body::{Body as HttpBody, Frame};
use tonic::Status;

use super::face::Face;
use super::refusal;
use crate::admission::{Budget, Client, Held};

/// Path of requests with a transaction.
const TXN_PATH: &str = "/etcdserverpb.KV/Txn";

/// Bytes of the gRPC prefix of a message: compression flag and length.
const FRAME_BYTES: usize = 5;

/// Maximum bytes of a message (tonic's limit). A larger one is refused by its prefix.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Maximum number of comparisons and operations in the whole tree of a transaction, including
/// branches that are not chosen.
///
/// etcd limits each path only, so that a request could have as many operations as fit in its bytes.
/// meshkeep's own client sends four.
pub(super) const TREE_OPERATIONS_MAX: usize = 1_024;

/// The body of a request.
pub(super) struct Receiving<B> {
    body: B,
    held: Held,
    message: Message,
    /// Bytes of an incomplete transaction; `None` on other paths.
    txn: Option<Vec<u8>>,
}

/// State of the message that is being received.
#[derive(Debug, Default)]
struct Message {
    head: Vec<u8>,
    missing: usize,
    /// Number of bytes received after the prefix.
    come: usize,
}

impl Message {
    /// Processes received bytes. Afterwards the state is that of the last, incomplete message.
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.head.len() < FRAME_BYTES {
                let (of_head, rest) = bytes.split_at(bytes.len().min(FRAME_BYTES - self.head.len()));
                self.head.extend_from_slice(of_head);
                bytes = rest;
                if let [_, length @ ..] = &self.head[..]
                    && let Ok(length) = <[u8; 4]>::try_from(length)
                {
                    self.missing = u32::from_be_bytes(length) as usize;
                }
            } else {
                let of_message = bytes.len().min(self.missing);
                bytes.advance(of_message);
                self.missing -= of_message;
                self.come += of_message;
            }
            if self.head.len() == FRAME_BYTES && self.missing == 0 {
                *self = Self::default();
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.head.is_empty()
    }
}

impl<B> Receiving<B> {
    /// Wraps the body of a request.
    pub(super) fn of(face: &Arc<Face>, request: Request<B>) -> Request<Self> {
        let client = request.extensions().get().copied().unwrap_or(Client::Local);
        let txn = (request.uri().path() == TXN_PATH).then(Vec::new);
        let held = Budget::none(&face.received, client);
        request.map(|body| Self { body, held, message: Message::default(), txn })
    }

    /// Returns the bytes to pass on; `None` while a transaction is incomplete.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` if the budget is used up, and refuses transactions with too many
    /// operations.
    fn received(&mut self, bytes: Bytes) -> Result<Option<Bytes>, Status> {
        self.message.add(&bytes);
        let come = self.message.come;
        self.held.shrink_to(come);
        let lacking = come.saturating_sub(self.held.bytes());
        if lacking > 0 {
            self.held.grow(lacking).map_err(refusal::no_room_for_requests)?;
        }
        let Some(txn) = &mut self.txn else { return Ok(Some(bytes)) };
        txn.extend_from_slice(&bytes);
        if !self.message.is_whole() && come + self.message.missing <= MESSAGE_BYTES_MAX {
            return Ok(None);
        }
        let whole = std::mem::take(txn);
        let mut left = TREE_OPERATIONS_MAX;
        count(whole.get(FRAME_BYTES..).unwrap_or_default(), &mut left).ok_or_else(|| refusal::too_large_tree(TREE_OPERATIONS_MAX))?;
        Ok(Some(Bytes::from(whole)))
    }
}

impl<B> HttpBody for Receiving<B>
where
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            };
            let received = match frame.into_data() {
                Ok(bytes) => self.received(bytes),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
            match received {
                Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Ok(None) => {}
                Err(status) => return Poll::Ready(Some(Err(status.into()))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Subtracts the comparisons and operations of an encoded `TxnRequest` from `left`. Returns `None`
/// if there are more.
///
/// Malformed messages are left to the decoder, which refuses them.
fn count(mut txn: &[u8], left: &mut usize) -> Option<()> {
    while let Some((number, content)) = field(&mut txn) {
        if !matches!(number, 1..=3) {
            continue;
        }
        *left = left.checked_sub(1)?;
        let mut operation = if number == 1 { &[] } else { content };
        while let Some((kind, inner)) = field(&mut operation) {
            // `request_txn`
            if kind == 4 {
                count(inner, left)?;
            }
        }
    }
    Some(())
}

/// Decodes the next field of a message: its number, and its content if it is a message or bytes.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let tag = varint(bytes)?;
    let length = match tag & 7 {
        0 => varint(bytes).map(|_| 0)?,
        1 => 8,
        2 => usize::try_from(varint(bytes)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some((tag >> 3, if tag & 7 == 2 { content } else { &[] }))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a field with a message or bytes.
    fn message(number: u8, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).unwrap();
        let length = [length.to_le_bytes()[0] | 0x80, u8::try_from(length >> 7).unwrap()];
        [&[number << 3 | 2][..], &length[..], content].concat()
    }

    /// Returns the number of operations, or `None` above the bound.
    fn counted(txn: &[u8], most: usize) -> Option<usize> {
        let mut left = most;
        count(txn, &mut left).map(|()| most - left)
    }

    #[test]
    fn the_whole_tree_is_counted_and_no_more_than_there_may_be() {
        let range = message(2, &message(1, b"\x0a\x01a"));
        let compare = message(1, b"\x1a\x01a");
        let inner = |count: usize| message(3, &message(4, &[compare.clone(), range.repeat(count)].concat()));
        let txn = [compare.clone(), range.repeat(3), inner(5).repeat(2), b"\x30\x07".to_vec()].concat();
        let all = 1 + 3 + 2 * (1 + 1 + 5);
        assert_eq!([counted(&txn, 1_024), counted(&txn, all), counted(&txn, all - 1)], [Some(all), Some(all), None]);
        // a truncated message is left to the decoder
        assert_eq!(
            [counted(&txn[..txn.len() - 1], 1_024), counted(&compare[..3], 1_024), counted(b"\xff", 1_024)],
            [Some(all), Some(0), Some(0)]
        );
    }

    #[test]
    fn what_is_not_whole_is_counted_until_it_is() {
        let framed = |length: usize| [&[0][..], &u32::try_from(length).unwrap().to_be_bytes(), &vec![7; length]].concat();
        let bytes = [framed(0), framed(10), framed(3)].concat();
        for size in 1..bytes.len() {
            let mut message = Message::default();
            bytes.chunks(size).for_each(|chunk| message.add(chunk));
            assert!(message.is_whole() && message.come == 0, "pieces of {size}");
        }
        let mut message = Message::default();
        message.add(&bytes[..14]);
        assert!(!message.is_whole());
        assert_eq!((message.come, message.missing), (4, 6));
    }
}
