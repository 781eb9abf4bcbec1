//! Bodies of requests: limits the memory of incomplete messages and the size of transactions.
//!
//! The bytes of an incomplete message are charged to its client. A transaction is buffered until it
//! is complete, so that its operations can be counted before tonic decodes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Request;
use http_body::{Body as HttpBody, Frame};
use tonic::Status;

use super::errors;
use super::state::EtcdApi;
use crate::admission::{Client, MemoryBudget, MemoryPermit};

/// Path of requests with a transaction.
const TXN_PATH: &str = "/etcdserverpb.KV/Txn";

/// Bytes of the gRPC prefix of a message: compression flag and length.
const FRAME_BYTES: usize = 5;

/// Maximum bytes of a message (tonic's limit). tonic refuses a larger message when it has read the
/// prefix.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Maximum number of comparisons and operations in the whole tree of a transaction, including
/// branches that are not chosen.
///
/// etcd limits only each path, so a request could have as many operations as fit in its bytes.
/// meshkeep's own client sends four.
pub(super) const TREE_OPERATIONS_MAX: usize = 1_024;

pub(super) struct RequestBody<B> {
    body: B,
    permit: MemoryPermit,
    message: IncompleteMessage,
    /// Bytes of an incomplete transaction; `None` on other paths.
    txn: Option<Vec<u8>>,
}

/// State of the message that is being received.
#[derive(Debug, Default)]
struct IncompleteMessage {
    prefix: Vec<u8>,
    missing: usize,
    /// Number of bytes received after the prefix.
    received: usize,
}

impl IncompleteMessage {
    /// Updates the state with received bytes. Resets it whenever a message is complete.
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.prefix.len() < FRAME_BYTES {
                let (prefix_bytes, rest) = bytes.split_at(bytes.len().min(FRAME_BYTES - self.prefix.len()));
                self.prefix.extend_from_slice(prefix_bytes);
                bytes = rest;
                if let [_, length @ ..] = &self.prefix[..]
                    && let Ok(length) = <[u8; 4]>::try_from(length)
                {
                    self.missing = u32::from_be_bytes(length) as usize;
                }
            } else {
                let message_bytes = bytes.len().min(self.missing);
                bytes.advance(message_bytes);
                self.missing -= message_bytes;
                self.received += message_bytes;
            }
            if self.prefix.len() == FRAME_BYTES && self.missing == 0 {
                *self = Self::default();
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.prefix.is_empty()
    }
}

impl<B> RequestBody<B> {
    pub(super) fn wrap_request(api: &Arc<EtcdApi>, request: Request<B>) -> Request<Self> {
        let client = request.extensions().get().copied().unwrap_or(Client::Local);
        let txn = (request.uri().path() == TXN_PATH).then(Vec::new);
        let permit = MemoryBudget::empty_permit(&api.request_budget, client);
        request.map(|body| Self { body, permit, message: IncompleteMessage::default(), txn })
    }

    /// Returns the bytes to pass on to tonic, or `None` while a transaction is incomplete.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` if the budget is used up, and refuses transactions with too many
    /// operations.
    fn accept(&mut self, bytes: Bytes) -> Result<Option<Bytes>, Status> {
        self.message.add(&bytes);
        let received = self.message.received;
        self.permit.shrink_to(received);
        let missing = received.saturating_sub(self.permit.bytes());
        if missing > 0 {
            self.permit.grow(missing).map_err(errors::request_budget_exhausted)?;
        }
        let Some(txn) = &mut self.txn else { return Ok(Some(bytes)) };
        txn.extend_from_slice(&bytes);
        if !self.message.is_complete() && received + self.message.missing <= MESSAGE_BYTES_MAX {
            return Ok(None);
        }
        let complete = std::mem::take(txn);
        let mut remaining = TREE_OPERATIONS_MAX;
        count_operations(complete.get(FRAME_BYTES..).unwrap_or_default(), &mut remaining)
            .ok_or_else(|| errors::txn_tree_too_large(TREE_OPERATIONS_MAX))?;
        Ok(Some(Bytes::from(complete)))
    }
}

impl<B> HttpBody for RequestBody<B>
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
                Ok(bytes) => self.accept(bytes),
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

/// Subtracts the number of comparisons and operations of an encoded `TxnRequest` from `remaining`.
/// Returns `None` if there are more than that.
///
/// Malformed messages are left to the decoder, which refuses them.
fn count_operations(mut txn: &[u8], remaining: &mut usize) -> Option<()> {
    while let Some((number, content)) = decode_field(&mut txn) {
        if !matches!(number, 1..=3) {
            continue;
        }
        *remaining = remaining.checked_sub(1)?;
        let mut operation = if number == 1 { &[] } else { content };
        while let Some((kind, inner)) = decode_field(&mut operation) {
            // `request_txn`
            if kind == 4 {
                count_operations(inner, remaining)?;
            }
        }
    }
    Some(())
}

/// Decodes the next field of a message: its number, and its content if it is a message or bytes.
fn decode_field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let tag = decode_varint(bytes)?;
    let length = match tag & 7 {
        0 => decode_varint(bytes).map(|_| 0)?,
        1 => 8,
        2 => usize::try_from(decode_varint(bytes)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some((tag >> 3, if tag & 7 == 2 { content } else { &[] }))
}

fn decode_varint(bytes: &mut &[u8]) -> Option<u64> {
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

    /// Returns the number of operations, or `None` if it exceeds the limit.
    fn counted(txn: &[u8], limit: usize) -> Option<usize> {
        let mut remaining = limit;
        count_operations(txn, &mut remaining).map(|()| limit - remaining)
    }

    #[test]
    fn all_operations_of_the_tree_are_counted_up_to_the_limit() {
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
    fn bytes_of_an_incomplete_message_are_counted_until_it_is_complete() {
        let framed = |length: usize| [&[0][..], &u32::try_from(length).unwrap().to_be_bytes(), &vec![7; length]].concat();
        let bytes = [framed(0), framed(10), framed(3)].concat();
        for size in 1..bytes.len() {
            let mut message = IncompleteMessage::default();
            bytes.chunks(size).for_each(|chunk| message.add(chunk));
            assert!(message.is_complete() && message.received == 0, "pieces of {size}");
        }
        let mut message = IncompleteMessage::default();
        message.add(&bytes[..14]);
        assert!(!message.is_complete());
        assert_eq!((message.received, message.missing), (4, 6));
    }
}
