//! Protobuf encoder for the answers of ranges and transactions (`etcdserverpb/rpc.proto`).
//!
//! It writes an answer in pieces. A list of a million keys is one message of 330 MB, and neither
//! its structures nor its bytes ever exist as a whole.

use std::mem::take;

use crate::etcd_api::revisions::to_revision;
use crate::model::RawRecord;
use etcd_client::proto::PbResponseHeader;

/// Usual size of a piece in bytes. A piece with one large value can be larger.
const PIECE_BYTES: usize = 64 << 10;

/// A piece below this size in bytes is appended to the previous one.
const SMALL_PIECE_BYTES: usize = 4 << 10;

/// Bytes of the gRPC prefix of a message: compression flag and length.
const FRAME_BYTES: usize = 5;

/// Fields of `RangeResponse`.
const RANGE_KVS: u32 = 2;
const RANGE_MORE: u32 = 3;
const RANGE_COUNT: u32 = 4;

/// Fields of `TxnResponse`.
const TXN_SUCCEEDED: u32 = 2;
const TXN_RESPONSES: u32 = 3;

/// Field of the header in every response.
const RESPONSE_HEADER: u32 = 1;

/// Field of the `RangeResponse` in `ResponseOp` and in `RangeStreamResponse`.
const RANGE_RESPONSE: u32 = 1;

/// Field of the `TxnResponse` in `ResponseOp`.
const TXN_RESPONSE: u32 = 4;

/// A partially encoded message.
#[derive(Debug, Default)]
pub(in crate::etcd_api) struct ResponseEncoder {
    pieces: Vec<Vec<u8>>,
    length: usize,
}

/// Start of an embedded message, whose length is known only at its end.
#[derive(Debug)]
pub(in crate::etcd_api) struct MessageStart {
    piece: usize,
    length_before: usize,
}

impl ResponseEncoder {
    /// Returns the current piece, with space for more bytes.
    fn reserve(&mut self, bytes: usize) -> &mut Vec<u8> {
        self.length += bytes;
        let is_full = self.pieces.last().is_none_or(|piece| !piece.is_empty() && piece.len() + bytes > PIECE_BYTES);
        if is_full {
            // the first piece is usually small, and grows
            let capacity = if self.pieces.is_empty() { bytes } else { PIECE_BYTES.max(bytes) };
            self.pieces.push(Vec::with_capacity(capacity));
        }
        let last = self.pieces.len() - 1;
        &mut self.pieces[last]
    }

    pub(in crate::etcd_api) const fn length(&self) -> usize {
        self.length
    }

    pub(in crate::etcd_api) fn put_header(&mut self, header: &PbResponseHeader) {
        let fields = [(1, header.cluster_id), (2, header.member_id), (3, header.revision.cast_unsigned()), (4, header.raft_term)];
        let length = fields.iter().map(|(number, value)| number_length(*number, *value)).sum();
        let out = self.reserve(bytes_length(RESPONSE_HEADER, length));
        put_length(out, RESPONSE_HEADER, length);
        fields.into_iter().for_each(|(number, value)| put_number(out, number, value));
    }

    /// Encodes one key of a range.
    pub(in crate::etcd_api) fn put_key_value(&mut self, record: &RawRecord, keys_only: bool) {
        let value: &[u8] = if keys_only { &[] } else { &record.value };
        let numbers = [
            (2, to_revision(record.create_sequence).cast_unsigned()),
            (3, to_revision(record.last_sequence).cast_unsigned()),
            (4, record.version),
        ];
        let optional = |number: u32, bytes: &[u8]| if bytes.is_empty() { 0 } else { bytes_length(number, bytes.len()) };
        let length = optional(1, record.key.as_bytes())
            + numbers.iter().map(|(number, value)| number_length(*number, *value)).sum::<usize>()
            + optional(5, value);
        let out = self.reserve(bytes_length(RANGE_KVS, length));
        put_length(out, RANGE_KVS, length);
        put_bytes(out, 1, record.key.as_bytes());
        numbers.into_iter().for_each(|(number, value)| put_number(out, number, value));
        put_bytes(out, 5, value);
    }

    /// Encodes the end of a range: whether there are more keys than requested, and the number of
    /// keys.
    pub(in crate::etcd_api) fn put_range_end(&mut self, more: bool, count: i64) {
        let fields = [(RANGE_MORE, u64::from(more)), (RANGE_COUNT, count.cast_unsigned())];
        self.put_numbers(&fields);
    }

    /// Encodes which branch of a transaction was chosen.
    pub(in crate::etcd_api) fn put_succeeded(&mut self, succeeded: bool) {
        self.put_numbers(&[(TXN_SUCCEEDED, u64::from(succeeded))]);
    }

    fn put_numbers(&mut self, fields: &[(u32, u64)]) {
        let length = fields.iter().map(|(number, value)| number_length(*number, *value)).sum();
        let out = self.reserve(length);
        fields.iter().for_each(|(number, value)| put_number(out, *number, *value));
    }

    pub(in crate::etcd_api) fn begin_message(&mut self) -> MessageStart {
        let start = MessageStart { piece: self.pieces.len(), length_before: self.length };
        // `end_message` fills the first piece with tags and lengths; the second gets the content
        self.pieces.extend([Vec::new(), Vec::new()]);
        start
    }

    /// Ends the response of a range in a transaction.
    pub(in crate::etcd_api) fn end_range_response(&mut self, start: &MessageStart) {
        self.end_message(start, &[RANGE_RESPONSE, TXN_RESPONSES]);
    }

    /// Ends the response of a transaction in another transaction.
    pub(in crate::etcd_api) fn end_txn_response(&mut self, start: &MessageStart) {
        self.end_message(start, &[TXN_RESPONSE, TXN_RESPONSES]);
    }

    /// Ends a chunk of a range stream.
    pub(in crate::etcd_api) fn end_chunk(&mut self, start: &MessageStart) {
        self.end_message(start, &[RANGE_RESPONSE]);
    }

    /// Writes the tags and lengths of an embedded message and of the messages around it. `numbers`
    /// has the field number of each of them, the innermost first.
    fn end_message(&mut self, start: &MessageStart, numbers: &[u32]) {
        let (mut length, mut prefixes) = (self.length - start.length_before, Vec::new());
        for number in numbers {
            let mut prefix = Vec::with_capacity(prefixes.len() + bytes_length(*number, 0) + 10);
            put_length(&mut prefix, *number, length);
            length += prefix.len();
            prefix.append(&mut prefixes);
            prefixes = prefix;
        }
        self.length += prefixes.len();
        self.pieces[start.piece] = prefixes;
    }

    /// Returns the message with its gRPC prefix, in pieces.
    pub(in crate::etcd_api) fn into_frames(self) -> Vec<Vec<u8>> {
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        let frame = [&[0], &length.to_be_bytes()[..]].concat();
        let (mut pieces, mut last) = (Vec::with_capacity(self.pieces.len() + 1), frame);
        last.reserve_exact(self.pieces.first().map_or(0, Vec::len));
        debug_assert_eq!(last.len(), FRAME_BYTES);
        for piece in self.pieces {
            if piece.len() < SMALL_PIECE_BYTES && last.len() + piece.len() <= PIECE_BYTES {
                last.extend_from_slice(&piece);
            } else {
                pieces.push(take(&mut last));
                last = piece;
            }
        }
        pieces.push(last);
        pieces.iter_mut().for_each(Vec::shrink_to_fit);
        pieces
    }
}

const fn varint_length(value: u64) -> usize {
    // 7 bits per byte, at least one byte
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn number_length(number: u32, value: u64) -> usize {
    if value == 0 { 0 } else { varint_length(u64::from(number) << 3) + varint_length(value) }
}

/// Encodes a number. Zero is omitted: decoders use it as the default.
fn put_number(out: &mut Vec<u8>, number: u32, value: u64) {
    if value != 0 {
        put_varint(out, u64::from(number) << 3);
        put_varint(out, value);
    }
}

fn bytes_length(number: u32, length: usize) -> usize {
    varint_length(u64::from(number) << 3) + varint_length(length as u64) + length
}

fn put_length(out: &mut Vec<u8>, number: u32, length: usize) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, length as u64);
}

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_length(out, number, bytes.len());
        out.extend_from_slice(bytes);
    }
}
