//! Changes that break parsers.

use std::ops::Range;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Notes at the edges of what types hold, as text.
const NUMBERS: [&str; 20] = [
    "0",
    "1",
    "-1",
    "-0",
    "255",
    "256",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "1e308",
    "-1e999",
    "5e-324",
    "0.1",
];

/// Values that stand where another one is expected.
const VALUES: [&str; 10] =
    ["null", "true", "false", "\"\"", "[]", "{}", "\"\\u0000\"", "\"\\ud800\"", "nan", "inf"];

const OPENINGS: [&str; 4] = ["[", "{\"a\":", "a = [", "a.a."];

/// Makes one change. `others` is where foreign parts come from.
pub fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    match rng.random_range(0..14) {
        0 | 1 => flip(rng, bytes),
        2 => edge(rng, bytes),
        3 => bytes.truncate(place(rng, bytes)),
        4 => {
            let range = range(rng, bytes, 64);
            bytes.drain(range);
        }
        5 => duplicate(rng, bytes),
        6 => splice(rng, bytes, others),
        7 => length(rng, bytes),
        8..=10 => number(rng, bytes),
        11 => value(rng, bytes),
        12 => swap(rng, bytes),
        _ => nest(rng, bytes),
    }
}

/// One bit of one byte.
fn flip(rng: &mut ChaCha8Rng, bytes: &mut [u8]) {
    let at = place(rng, bytes);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << rng.random_range(0..8);
    }
}

/// One byte becomes one at the edge of a range.
fn edge(rng: &mut ChaCha8Rng, bytes: &mut [u8]) {
    let at = place(rng, bytes);
    if let Some(byte) = bytes.get_mut(at) {
        *byte = *one_of(rng, &[0, 1, 0x1f, b' ', b'"', b'/', b'\\', 0x7f, 0x80, 0xc0, 0xf4, 0xff]);
    }
}

/// A range comes again behind itself, now and then very often.
fn duplicate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    let range = range(rng, bytes, 256);
    let times = if rng.random_ratio(1, 8) { rng.random_range(2..=64) } else { 1 };
    let copy = bytes[range.clone()].repeat(times);
    bytes.splice(range.end..range.end, copy);
}

/// A range of another payload takes the place of one of this.
fn splice(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    if others.is_empty() {
        return;
    }
    let other = &others[rng.random_range(0..others.len())];
    let (from, to) = (range(rng, other, 256), range(rng, bytes, 256));
    bytes.splice(to, other[from].iter().copied());
}

/// A binary number of 4 or 8 bytes, at the edge of what fits, or near the length of what is there.
fn length(rng: &mut ChaCha8Rng, bytes: &mut [u8]) {
    let whole = bytes.len() as u64;
    let lengths =
        [0, 1, whole, whole.wrapping_sub(1), whole + 1, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 63];
    let number = if rng.random() { *one_of(rng, &lengths) } else { u64::MAX - rng.random_range(0..16) };
    let width = if rng.random() { 4 } else { 8 };
    let mut at = place(rng, bytes);
    if rng.random() {
        at = at / 4 * 4;
    }
    for (byte, new) in bytes.iter_mut().skip(at).zip(&number.to_le_bytes()[..width]) {
        *byte = *new;
    }
}

/// A number in text becomes another one: near by, extreme, or as long as it likes.
fn number(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    let Some(range) = token(rng, bytes, |byte| byte.is_ascii_digit()) else { return };
    let new = match rng.random_range(0..8) {
        0..4 => one_of(rng, &NUMBERS).as_bytes().to_vec(),
        4 => b"9".repeat(rng.random_range(1..400)),
        _ => {
            let text = str::from_utf8(&bytes[range.clone()]).unwrap_or_default();
            let known: u64 = text.parse().unwrap_or_default();
            known.wrapping_add(rng.random_range(0..9)).wrapping_sub(4).to_string().into_bytes()
        }
    };
    bytes.splice(range, new);
}

/// A word becomes a value of another kind.
fn value(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'"' | b'_' | b'.' | b'-');
    let Some(range) = token(rng, bytes, inside) else { return };
    bytes.splice(range, one_of(rng, &VALUES).bytes());
}

/// Two words of the text change their places.
fn swap(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let (Some(one), Some(other)) = (token(rng, bytes, inside), token(rng, bytes, inside)) else { return };
    let (first, second) = if one.start < other.start { (one, other) } else { (other, one) };
    if first.end <= second.start {
        let (left, right) = (bytes[first.clone()].to_vec(), bytes[second.clone()].to_vec());
        bytes.splice(second, left);
        bytes.splice(first, right);
    }
}

/// Something opens, up to a few thousand times, and may close as often.
fn nest(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    let depth = if rng.random_ratio(1, 32) { 4000 } else { *one_of(rng, &[2, 20, 127, 128, 129]) };
    let opening = one_of(rng, &OPENINGS);
    let range = token(rng, bytes, |byte| byte.is_ascii_alphanumeric()).unwrap_or(0..0);
    let mut nested = opening.repeat(depth).into_bytes();
    if rng.random() {
        nested.push(b'1');
        nested.extend(if opening.starts_with('{') { "}" } else { "]" }.repeat(depth).bytes());
    }
    bytes.splice(range, nested);
}

/// The run of bytes that belong together around or behind a random place.
fn token(rng: &mut ChaCha8Rng, bytes: &[u8], inside: impl Fn(u8) -> bool) -> Option<Range<usize>> {
    let from = place(rng, bytes);
    let near = from + bytes.get(from..)?.iter().position(|byte| inside(*byte))?;
    let start = bytes[..near].iter().rposition(|byte| !inside(*byte)).map_or(0, |before| before + 1);
    let length = bytes[near..].iter().position(|byte| !inside(*byte)).unwrap_or(bytes.len() - near);
    Some(start..near + length)
}

/// A random place; 0 where there is none.
fn place(rng: &mut ChaCha8Rng, bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { rng.random_range(0..bytes.len()) }
}

/// A random range of at most `most` bytes.
fn range(rng: &mut ChaCha8Rng, bytes: &[u8], most: usize) -> Range<usize> {
    let start = place(rng, bytes);
    start..(start + rng.random_range(0..=most)).min(bytes.len())
}

fn one_of<'a, T>(rng: &mut ChaCha8Rng, among: &'a [T]) -> &'a T {
    &among[rng.random_range(0..among.len())]
}
