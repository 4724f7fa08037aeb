//! What other ranks send: messages of the rendezvous and the control plane, and headers of operations.

use brigade_comm::fuzzing;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::target::{Bound, Limit, Target};

/// Messages on a control connection, and what rank 0 makes of their answers.
///
/// A payload is the JSON of one message. Counted as parsed: it begins with a whole message. Bound: what is decoded
/// from JSON takes a multiple of its text; what follows from an answer is in proportion to all answers before it.
pub const FRAME: Target = Target {
    name: "frame",
    run: fuzzing::frame,
    parsed: |input| input.split_first().is_some_and(|(_, frames)| fuzzing::begins_with_message(frames)),
    bound: Bound {
        peak: Limit { fixed: 64 << 10, per_byte: 64 },
        total: Limit { fixed: 128 << 10, per_byte: 128 },
    },
    payloads: fuzzing::message_payloads,
    envelope: |rng, payloads| {
        let mut input = vec![rng.random()];
        payloads.iter().for_each(|payload| push_frame(&mut input, payload));
        input
    },
};

/// What comes first on a new connection: the handshake of either side.
///
/// A payload is what one side sends. Counted as parsed: the handshake's word and its message, though no key fits.
pub const RENDEZVOUS: Target = Target {
    name: "rendezvous",
    run: fuzzing::rendezvous,
    parsed: fuzzing::is_handshake,
    bound: Bound {
        peak: Limit { fixed: 64 << 10, per_byte: 64 },
        total: Limit { fixed: 64 << 10, per_byte: 256 },
    },
    payloads: fuzzing::handshake_payloads,
    envelope: |rng, payloads| {
        let mut input = vec![rng.random_range(0..2)];
        input.extend(payloads.first().into_iter().flatten());
        input
    },
};

/// What another rank writes on a link while this one waits for a message.
///
/// A payload is a header with what may follow it. Counted as parsed: it begins with the header of a call. Bound: a message may be as
/// long as the receive allows, whatever arrives.
pub const HEADER: Target = Target {
    name: "header",
    run: fuzzing::call_header,
    parsed: |input| input.split_first().is_some_and(|(_, bytes)| fuzzing::begins_with_header(bytes)),
    bound: Bound {
        peak: Limit { fixed: fuzzing::MESSAGE_LIMIT + (384 << 10), per_byte: 16 },
        total: Limit { fixed: fuzzing::MESSAGE_LIMIT + (384 << 10), per_byte: 64 },
    },
    payloads: fuzzing::header_payloads,
    envelope: |rng: &mut ChaCha8Rng, payloads| {
        let mut input = vec![rng.random()];
        input.extend(payloads.concat());
        input
    },
};

fn push_frame(input: &mut Vec<u8>, body: &[u8]) {
    input.extend((body.len() as u32).to_le_bytes());
    input.extend(body);
}
