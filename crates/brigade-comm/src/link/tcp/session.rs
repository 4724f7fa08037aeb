//! Traffic after a handshake: records that nobody else can read, change, repeat, drop or reorder.
//!
//! A record is a length of two bytes, big-endian, and a message of the Noise protocol (revision 34, section 12): the plain bytes
//! under AES-256-GCM, numbered per direction. A record that is not the next one of its connection does not open.

use ring::aead::{Aad, LessSafeKey};
use snow::HandshakeState;

use crate::link::tcp::primitives::{KEY_BYTES, TAG_BYTES, aes_key, nonce};

/// The longest record that the protocol allows, without its length.
pub(crate) const MAX_RECORD_BYTES: usize = 65535;
/// Bytes of a record's length.
pub(crate) const LENGTH_BYTES: usize = 2;
/// Plain bytes of a long record: whole elements and headers.
pub(crate) const PLAIN_BYTES: usize = (MAX_RECORD_BYTES - TAG_BYTES) / 64 * 64;
/// Records under one key, at most 64 GiB: far below what AES-GCM allows (RFC 8446, section 5.5: 2^24.5 full records).
const RECORDS_PER_KEY: u64 = 1 << 20;

/// Why a record does not open.
pub(crate) const NOT_AUTHENTIC: &str =
    "the bytes from it are not those it sent: something on the network changed, dropped or repeated some";

/// Both directions of a connection after its handshake.
pub(crate) struct Session {
    sealing: Box<Direction>,
    opening: Box<Direction>,
}

/// One direction, by `ring` itself: `snow` would copy every record once more.
struct Direction {
    key: LessSafeKey,
    records: u64,
}

impl Session {
    /// The keys that a handshake has ended with; none if it has not.
    pub(crate) fn new(mut handshake: HandshakeState) -> Option<Self> {
        if !handshake.is_handshake_finished() {
            return None;
        }
        let is_initiator = handshake.is_initiator();
        let (of_initiator, of_responder) = handshake.dangerously_get_raw_split();
        let direction = |key| Some(Box::new(Direction::new(key)?));
        let (of_initiator, of_responder) = (direction(&of_initiator)?, direction(&of_responder)?);
        Some(match is_initiator {
            true => Self { sealing: of_initiator, opening: of_responder },
            false => Self { sealing: of_responder, opening: of_initiator },
        })
    }

    /// Appends plain bytes to `out`, as records. They must be sent in this order.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        for plain in plain.chunks(PLAIN_BYTES) {
            out.reserve(LENGTH_BYTES + plain.len() + TAG_BYTES);
            out.extend_from_slice(&((plain.len() + TAG_BYTES) as u16).to_be_bytes());
            let start = out.len();
            out.extend_from_slice(plain);
            self.sealing.seal(out, start);
        }
    }

    /// Opens a record, without its length, which is in `bytes` from `record` on: its plain bytes are then the first ones of `bytes`, as many as are returned.
    pub(crate) fn open(&mut self, bytes: &mut [u8], record: usize) -> Result<usize, &'static str> {
        self.opening.open(bytes, record)
    }
}

impl Direction {
    fn new(key: &[u8]) -> Option<Self> {
        Some(Self { key: aes_key(key)?, records: 0 })
    }

    /// Seals what is in `out` from `start` on, and appends the authentication.
    fn seal(&mut self, out: &mut Vec<u8>, start: usize) {
        let sealed =
            self.key.seal_in_place_separate_tag(nonce(self.records), Aad::empty(), &mut out[start..]);
        // It cannot fail: a record is far below the cipher's limit. If it did, nothing would be sent in the clear, and the other side
        // would refuse the empty record.
        match sealed {
            Ok(tag) => out.extend_from_slice(tag.as_ref()),
            Err(_) => out.truncate(start),
        }
        self.next();
    }

    fn open(&mut self, bytes: &mut [u8], record: usize) -> Result<usize, &'static str> {
        let plain = self.key.open_within(nonce(self.records), Aad::empty(), bytes, record..);
        let count = plain.map_err(|_| NOT_AUTHENTIC)?.len();
        self.next();
        Ok(count)
    }

    /// Another key when it is time, made as the protocol says (section 4.2): zeros under the last number.
    fn next(&mut self) {
        self.records += 1;
        if self.records.is_multiple_of(RECORDS_PER_KEY) {
            let mut key = [0; KEY_BYTES];
            let sealed = self.key.seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut key);
            if let Some(next) = sealed.ok().and_then(|_| Self::new(&key)) {
                self.key = next.key;
            }
        }
    }
}

/// The bytes of the first record without its length, if they begin with its length.
pub(crate) fn record_bytes(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|length| usize::from(u16::from_be_bytes(*length)))
}

/// Two ends of a connection, as a handshake leaves them.
#[cfg(test)]
pub(crate) fn pair() -> (Session, Session) {
    let (near, far) = tests::handshakes();
    (Session::new(near).unwrap(), Session::new(far).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::tcp::primitives::Primitives;

    pub(super) fn handshakes() -> (HandshakeState, HandshakeState) {
        let protocol = || "Noise_NN_25519_AESGCM_SHA256".parse().unwrap();
        let builder = || snow::Builder::with_resolver(protocol(), Box::new(Primitives));
        let (mut near, mut far) =
            (builder().build_initiator().unwrap(), builder().build_responder().unwrap());
        let (mut message, mut payload) = ([0; 64], [0; 64]);
        let length = near.write_message(&[], &mut message).unwrap();
        far.read_message(&message[..length], &mut payload).unwrap();
        assert!(Session::new(builder().build_initiator().unwrap()).is_none());
        let length = far.write_message(&[], &mut message).unwrap();
        near.read_message(&message[..length], &mut payload).unwrap();
        (near, far)
    }

    fn records(sealed: &[u8]) -> Vec<&[u8]> {
        let (mut records, mut rest) = (Vec::new(), sealed);
        while let Some(bytes) = record_bytes(rest) {
            records.push(&rest[LENGTH_BYTES..LENGTH_BYTES + bytes]);
            rest = &rest[LENGTH_BYTES + bytes..];
        }
        records
    }

    #[test]
    fn only_the_next_record_opens() {
        let plain: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let open = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
            let (mut near, mut far) = pair();
            let mut sealed = Vec::new();
            near.seal(&plain, &mut sealed);
            let mut records: Vec<_> = records(&sealed).into_iter().map(<[u8]>::to_vec).collect();
            assert_eq!(records.len(), 4);
            change(&mut records);
            let mut opened = Vec::new();
            for record in &mut records {
                match far.open(record, 0) {
                    Ok(count) => opened.extend_from_slice(&record[..count]),
                    Err(_) => return Err(opened.len()),
                }
            }
            Ok(opened)
        };
        assert_eq!(open(&|_| {}), Ok(plain.clone()));
        assert_eq!(open(&|records| records.swap(1, 2)), Err(PLAIN_BYTES));
        assert_eq!(open(&|records| drop(records.remove(0))), Err(0));
        assert_eq!(open(&|records| records[2] = records[1].clone()), Err(2 * PLAIN_BYTES));
        assert_eq!(open(&|records| records[3].truncate(40)), Err(3 * PLAIN_BYTES));
        assert_eq!(open(&|records| records[0].clear()), Err(0));
        for bit in [0, 8 * 70, 8 * 65_000] {
            assert_eq!(open(&|records| records[1][bit / 8] ^= 1 << (bit % 8)), Err(PLAIN_BYTES));
        }
    }

    #[test]
    fn keys_are_changed_on_both_sides_at_once() {
        let (mut near, mut far) = pair();
        (near.sealing.records, far.opening.records) = (RECORDS_PER_KEY - 2, RECORDS_PER_KEY - 2);
        for turn in 0..5u8 {
            let mut sealed = Vec::new();
            near.seal(&[turn; 8], &mut sealed);
            let record = &mut sealed[LENGTH_BYTES..];
            assert_eq!(far.open(record, 0), Ok(8));
            assert_eq!(record[..8], [turn; 8]);
        }
    }

    #[test]
    fn records_are_those_of_the_noise_protocol() {
        let (near, far) = handshakes();
        let (mut near, mut far) = (Session::new(near).unwrap(), far.into_transport_mode().unwrap());
        near.sealing.records = RECORDS_PER_KEY - 2;
        far.set_receiving_nonce(RECORDS_PER_KEY - 2);
        let mut into = [0; 64];
        for turn in 0..5u8 {
            let mut sealed = Vec::new();
            near.seal(&[turn; 8], &mut sealed);
            assert_eq!(far.read_message(&sealed[LENGTH_BYTES..], &mut into), Ok(8));
            assert_eq!(into[..8], [turn; 8]);
            if turn == 1 {
                far.rekey_incoming();
            }
        }
        let length = far.write_message(&[9; 30], &mut into).unwrap();
        assert_eq!(near.open(&mut into[..length], 0), Ok(30));
        assert_eq!(into[..30], [9; 30]);
    }
}
