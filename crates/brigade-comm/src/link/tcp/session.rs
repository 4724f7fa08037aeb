//! Traffic after a handshake: records that nobody else can read, change, repeat, drop or reorder.
//!
//! A record is a length of two bytes, big-endian, and a message of the Noise protocol (revision 34, section 12): the plain bytes
//! under AES-256-GCM, numbered per direction. A record that is not the next one of its connection does not open.

use snow::TransportState;

/// The longest record that the protocol allows, without its length.
pub(crate) const MAX_RECORD_BYTES: usize = 65535;
/// What a record has besides its plain bytes: its authentication.
const TAG_BYTES: usize = 16;
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
    state: Box<TransportState>,
    sealed: u64,
    opened: u64,
}

impl Session {
    pub(crate) fn new(state: TransportState) -> Self {
        Self { state: Box::new(state), sealed: 0, opened: 0 }
    }

    /// Appends plain bytes to `out`, as records. They must be sent in this order.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        for plain in plain.chunks(PLAIN_BYTES) {
            let start = out.len();
            let bytes = plain.len() + TAG_BYTES;
            out.extend_from_slice(&(bytes as u16).to_be_bytes());
            out.resize(start + LENGTH_BYTES + bytes, 0);
            // It cannot fail: the record is short enough, and its number far below the last one. If it did, the other side would refuse
            // the empty record.
            let _ = self.state.write_message(plain, &mut out[start + LENGTH_BYTES..]);
            self.sealed += 1;
            if self.sealed.is_multiple_of(RECORDS_PER_KEY) {
                self.state.rekey_outgoing();
            }
        }
    }

    /// The plain bytes of a record, without its length, at the beginning of `into`, which has [`plain_bytes`] of it at least.
    pub(crate) fn open(&mut self, record: &[u8], into: &mut [u8]) -> Result<usize, &'static str> {
        let count = self.state.read_message(record, into).map_err(|_| NOT_AUTHENTIC)?;
        self.opened += 1;
        if self.opened.is_multiple_of(RECORDS_PER_KEY) {
            self.state.rekey_incoming();
        }
        Ok(count)
    }
}

/// The plain bytes of a record of this many bytes, without its length.
pub(crate) fn plain_bytes(record: usize) -> usize {
    record.saturating_sub(TAG_BYTES)
}

/// The bytes of the first record without its length, if they begin with its length.
pub(crate) fn record_bytes(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|length| usize::from(u16::from_be_bytes(*length)))
}

/// Two ends of a connection, as a handshake leaves them.
#[cfg(test)]
pub(crate) fn pair() -> (Session, Session) {
    let builder = || snow::Builder::new("Noise_NN_25519_AESGCM_SHA256".parse().unwrap());
    let (mut near, mut far) = (builder().build_initiator().unwrap(), builder().build_responder().unwrap());
    let (mut message, mut payload) = ([0; 64], [0; 64]);
    let length = near.write_message(&[], &mut message).unwrap();
    far.read_message(&message[..length], &mut payload).unwrap();
    let length = far.write_message(&[], &mut message).unwrap();
    near.read_message(&message[..length], &mut payload).unwrap();
    let session = |state: snow::HandshakeState| Session::new(state.into_transport_mode().unwrap());
    (session(near), session(far))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let (mut opened, mut into) = (Vec::new(), vec![0; PLAIN_BYTES]);
            for record in &records {
                match far.open(record, &mut into) {
                    Ok(count) => opened.extend_from_slice(&into[..count]),
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
        (near.sealed, far.opened) = (RECORDS_PER_KEY - 2, RECORDS_PER_KEY - 2);
        let mut into = [0; 8];
        for turn in 0..5u8 {
            let mut sealed = Vec::new();
            near.seal(&[turn; 8], &mut sealed);
            assert_eq!(far.open(&sealed[LENGTH_BYTES..], &mut into), Ok(8));
            assert_eq!(into, [turn; 8]);
        }
    }
}
