//! The inputs of a target, by number.

mod corpus;
mod minimise;
mod mutate;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::target::Target;
use mutate::mutate;

pub use corpus::payloads;
pub use minimise::{MAX_TRIES, minimise};

/// The longest input, in bytes.
pub const LONGEST: usize = 1 << 14;

/// All inputs of a target under one seed.
#[derive(Debug, Clone)]
pub struct Inputs {
    envelope: fn(&mut ChaCha8Rng, &[Vec<u8>]) -> Vec<u8>,
    payloads: Vec<Vec<u8>>,
    rng: ChaCha8Rng,
}

impl Inputs {
    /// The inputs that are made from `payloads` under `seed`.
    pub fn new(target: &Target, payloads: Vec<Vec<u8>>, seed: u64) -> Self {
        let mut key = blake3::Hasher::new();
        key.update(&seed.to_le_bytes()).update(target.name.as_bytes());
        let rng = ChaCha8Rng::from_seed(*key.finalize().as_bytes());
        Self { envelope: target.envelope, payloads, rng }
    }

    /// How many of the first inputs are unchanged payloads.
    pub fn valid(&self) -> u64 {
        self.payloads.len() as u64
    }

    /// The input with this number: first each payload unchanged; of the rest, one in sixteen is random bytes and all others are
    /// changed payloads.
    pub fn get(&self, number: u64) -> Vec<u8> {
        let mut rng = self.rng.clone();
        rng.set_stream(number);
        let valid = usize::try_from(number).ok().and_then(|number| self.payloads.get(number));
        if let Some(payload) = valid {
            return (self.envelope)(&mut rng, std::slice::from_ref(payload));
        }
        if self.payloads.is_empty() || rng.random_ratio(1, 16) {
            return noise(&mut rng);
        }
        let count = if rng.random_ratio(5, 8) { 1 } else { rng.random_range(2..=4) };
        let chosen: Vec<_> = (0..count).map(|_| self.changed(&mut rng)).collect();
        let mut input = (self.envelope)(&mut rng, &chosen);
        if rng.random_ratio(1, 4) {
            mutate(&mut rng, &mut input, &self.payloads);
        }
        input.truncate(LONGEST);
        input
    }

    /// A payload with up to six changes. Few are more likely, because they leave most of it valid.
    fn changed(&self, rng: &mut ChaCha8Rng) -> Vec<u8> {
        let mut payload = self.payloads[rng.random_range(0..self.payloads.len())].clone();
        let most = rng.random_range(1..=6);
        for _ in 0..rng.random_range(0..=most) {
            mutate(rng, &mut payload, &self.payloads);
            payload.truncate(LONGEST);
        }
        payload
    }
}

/// Bytes of every kind, or of those that text is made of.
fn noise(rng: &mut ChaCha8Rng) -> Vec<u8> {
    const TEXT: &[u8] = b"{}[]\",:=.#'\\ \n\t0123456789-+eEtruefalsn_\xff";
    let text: bool = rng.random();
    let length = rng.random_range(0..=256);
    (0..length).map(|_| if text { TEXT[rng.random_range(0..TEXT.len())] } else { rng.random() }).collect()
}
