//! Mutations of valid values: nearly valid, deeply nested, huge and random ones.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore};

/// Tokens that decoders of these formats may handle wrongly.
const TOKENS: [&[u8]; 34] = [
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"4294967296",
    b"65536",
    b"0.0",
    b"\"\"",
    b"[]",
    b"{}",
    b"[",
    b"{\"a\":",
    b",",
    b":",
    b";",
    b"/",
    b"=",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b"\"",
    b"\xff",
    b"\0",
    b"::ffff:10.0.0.1",
    b"fe80::1%eth0",
    b"/////w==",
    b"/128",
    b"/-1",
    b"0001-01-01T00:00:00Z",
    b"\x28\xb5\x2f\xfd",
    b"\x42\x00",
    b"\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
];

/// Slightly more than the largest value that an etcd with a reasonable configuration accepts
/// (`embed.recommendedMaxRequestBytes`).
pub(super) const HUGE: usize = 16 << 20;

/// Usual maximum size of a mutated value. Small values are fast, and bugs rarely depend on size
/// alone.
const USUAL_BYTES_MAX: usize = 64 << 10;

/// Returns a mutated copy of a random value of `corpus`.
pub(super) fn mutated(random: &mut StdRng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus.choose(random).cloned().unwrap_or_default();
    for _ in 0..1_u32 << random.random_range(0..5) {
        damage(random, &mut bytes, corpus);
    }
    bytes.truncate(USUAL_BYTES_MAX);
    bytes
}

fn damage(random: &mut StdRng, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let at = random.random_range(0..=bytes.len());
    let end = (at + random.random_range(0..32_usize)).min(bytes.len());
    match random.random_range(0..9) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.random_range(0..8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.random();
            }
        }
        2 => drop(bytes.drain(at..end)),
        3 => insert(bytes, at, TOKENS.choose(random).copied().unwrap_or_default()),
        4 => drop(bytes.splice(at..end, TOKENS.choose(random).copied().unwrap_or_default().iter().copied())),
        5 => {
            let piece = bytes[at..end].to_vec();
            insert(bytes, at, &piece.repeat(random.random_range(1..40)));
        }
        6 => {
            let other = corpus.choose(random).map_or(&[][..], Vec::as_slice);
            let from = random.random_range(0..=other.len());
            insert(bytes, at, &other[from..(from + 200).min(other.len())]);
        }
        7 => {
            let mut noise = [0; 8];
            random.fill_bytes(&mut noise);
            insert(bytes, at, &noise);
        }
        _ => {
            let token = TOKENS.choose(random).copied().unwrap_or_default();
            insert(bytes, at, &token.repeat(random.random_range(1..2_000)));
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    drop(bytes.splice(at..at, piece.iter().copied()));
}

/// Returns values of 16 MiB: the beginning of a valid value, followed by repetitions of one token.
pub(super) fn huge(corpus: &[Vec<u8>]) -> impl Iterator<Item = Vec<u8>> + '_ {
    TOKENS.iter().enumerate().map(|(index, token)| {
        let good = corpus.get(index % corpus.len().max(1)).map_or(&[][..], Vec::as_slice);
        let mut bytes = good[..good.len() / 2].to_vec();
        bytes.extend(token.iter().copied().cycle().take(HUGE - bytes.len()));
        bytes
    })
}
