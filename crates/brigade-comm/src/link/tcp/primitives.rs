//! The primitives of the handshake's protocol, from `ring`. The Noise library's own choices would be compiled beside it, and twenty
//! crates with them.

use std::sync::Mutex;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{self, SHA256, SHA256_OUTPUT_LEN};
use ring::rand::{SecureRandom, SystemRandom};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};

/// Bytes of a key, of a public key, and of what two keys agree on.
pub(crate) const KEY_BYTES: usize = 32;
/// Bytes of a message's authentication.
pub(crate) const TAG_BYTES: usize = 16;

/// Gives X25519, AES-256-GCM and SHA-256, and nothing else.
pub(crate) struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Randomness(SystemRandom::new())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let ephemeral = || Ephemeral { private: Mutex::default(), public: [0; KEY_BYTES] };
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(ephemeral()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        let hash = || Sha256(digest::Context::new(&SHA256));
        matches!(choice, HashChoice::SHA256).then(|| Box::new(hash()) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(AesGcm(None)) as Box<dyn Cipher>)
    }
}

struct Randomness(SystemRandom);

impl Random for Randomness {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.fill(bytes).map_err(|_| Error::Rng)
    }
}

/// A pair of keys that agrees once: what a protocol without static keys needs, and all that `ring` allows.
struct Ephemeral {
    private: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; KEY_BYTES],
}

impl Dh for Ephemeral {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    /// Static keys are not used. Without a key of its own it agrees with nobody.
    fn set(&mut self, _: &[u8]) {
        self.private = Mutex::default();
    }

    /// `ring` takes randomness from its own generator alone.
    fn generate(&mut self, _: &mut dyn Random) -> Result<(), Error> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(|_| Error::Rng)?;
        let public = private.compute_public_key().map_err(|_| Error::Rng)?;
        self.public = public.as_ref().try_into().map_err(|_| Error::Rng)?;
        self.private = Mutex::new(Some(private));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    /// `ring` does not give it away, so keys cannot be generated to be kept.
    fn privkey(&self) -> &[u8] {
        &[]
    }

    fn dh(&self, public: &[u8], agreed: &mut [u8]) -> Result<(), Error> {
        let private = self.private.lock().ok().and_then(|mut private| private.take()).ok_or(Error::Dh)?;
        // The protocol's buffers are as long as the longest of all curves' keys.
        let public = UnparsedPublicKey::new(&X25519, public.get(..KEY_BYTES).ok_or(Error::Dh)?);
        let agreed = agreed.get_mut(..KEY_BYTES).ok_or(Error::Dh)?;
        agree_ephemeral(private, &public, |secret| agreed.copy_from_slice(secret)).map_err(|_| Error::Dh)
    }
}

struct Sha256(digest::Context);

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        SHA256.block_len()
    }

    fn hash_len(&self) -> usize {
        SHA256_OUTPUT_LEN
    }

    fn reset(&mut self) {
        self.0 = digest::Context::new(&SHA256);
    }

    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn result(&mut self, digest: &mut [u8]) {
        digest[..SHA256_OUTPUT_LEN].copy_from_slice(self.0.clone().finish().as_ref());
    }
}

/// A cipher, once it has a key.
struct AesGcm(Option<LessSafeKey>);

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        self.0 = aes_key(key);
    }

    /// Where it cannot encrypt it writes zeros, which do not open.
    fn encrypt(&self, number: u64, with: &[u8], plain: &[u8], sealed: &mut [u8]) -> usize {
        let (bytes, tag) = sealed[..plain.len() + TAG_BYTES].split_at_mut(plain.len());
        bytes.copy_from_slice(plain);
        let key = self.0.as_ref();
        match key.and_then(|key| key.seal_in_place_separate_tag(nonce(number), Aad::from(with), bytes).ok()) {
            Some(made) => tag.copy_from_slice(made.as_ref()),
            None => sealed[..plain.len() + TAG_BYTES].fill(0),
        }
        plain.len() + TAG_BYTES
    }

    fn decrypt(&self, number: u64, with: &[u8], sealed: &[u8], plain: &mut [u8]) -> Result<usize, Error> {
        let mut bytes = sealed.to_vec();
        let key = self.0.as_ref().ok_or(Error::Decrypt)?;
        let opened = key.open_in_place(nonce(number), Aad::from(with), &mut bytes);
        let opened = opened.map_err(|_| Error::Decrypt)?;
        plain.get_mut(..opened.len()).ok_or(Error::Decrypt)?.copy_from_slice(opened);
        Ok(opened.len())
    }
}

/// A key for AES-256-GCM; none if it has another length.
pub(crate) fn aes_key(key: &[u8]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new)
}

/// The number of a message under one key, as AES-GCM has it in this protocol (section 12.4).
pub(crate) fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use snow::Builder;

    const PROTOCOL: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

    /// The keys of both directions.
    type Keys = ([u8; 32], [u8; 32]);

    /// A handshake with our primitives on one side, or on both.
    fn meets(initiator: bool, responder: bool, keys: [u8; 2]) -> Result<[Keys; 2], Error> {
        let builder = |is_ours: bool| match is_ours {
            true => Builder::with_resolver(PROTOCOL.parse().unwrap(), Box::new(Primitives)),
            false => Builder::new(PROTOCOL.parse().unwrap()),
        };
        let psks = keys.map(|key| [key; 32]);
        let mut near = builder(initiator).prologue(b"word")?.psk(0, &psks[0])?.build_initiator()?;
        let mut far = builder(responder).prologue(b"word")?.psk(0, &psks[1])?.build_responder()?;
        let (mut message, mut payload) = ([0; 128], [0; 128]);
        let length = near.write_message(b"first", &mut message)?;
        let read = far.read_message(&message[..length], &mut payload)?;
        assert_eq!(&payload[..read], b"first");
        let length = far.write_message(b"second", &mut message)?;
        let read = near.read_message(&message[..length], &mut payload)?;
        assert_eq!(&payload[..read], b"second");
        assert_eq!(near.get_handshake_hash(), far.get_handshake_hash());
        Ok([near.dangerously_get_raw_split(), far.dangerously_get_raw_split()])
    }

    #[test]
    fn handshakes_with_the_libraries_own_primitives_end_with_the_same_keys() {
        for (initiator, responder) in [(true, true), (true, false), (false, true)] {
            let [near, far] = meets(initiator, responder, [7, 7]).unwrap();
            assert!(near == far && near.0 != near.1, "{initiator} {responder}");
            assert_ne!(near, meets(initiator, responder, [7, 7]).unwrap()[0], "keys of another connection");
            assert!(matches!(meets(initiator, responder, [7, 8]), Err(Error::Decrypt)));
        }
    }

    #[test]
    fn a_pair_of_keys_agrees_once_and_with_no_point_of_small_order() {
        let (mut one, mut other) = (ephemeral(), ephemeral());
        let mut random = Randomness(SystemRandom::new());
        one.generate(&mut random).unwrap();
        other.generate(&mut random).unwrap();
        let (mut here, mut there) = ([0; 56], [0; 56]);
        one.dh(other.pubkey(), &mut here).unwrap();
        other.dh(one.pubkey(), &mut there).unwrap();
        assert!(here == there && here[..KEY_BYTES] != [0; KEY_BYTES]);
        // Each pair of keys agrees once, and with no point of small order.
        assert!(matches!(one.dh(other.pubkey(), &mut here), Err(Error::Dh)));
        one.generate(&mut random).unwrap();
        assert!(matches!(one.dh(&[0; KEY_BYTES], &mut here), Err(Error::Dh)));
    }

    fn ephemeral() -> Box<dyn Dh> {
        Primitives.resolve_dh(&DHChoice::Curve25519).unwrap()
    }

    #[test]
    fn what_is_not_asked_for_is_not_there() {
        assert!(Primitives.resolve_hash(&HashChoice::SHA512).is_none());
        assert!(Primitives.resolve_cipher(&CipherChoice::ChaChaPoly).is_none());
        let mut plain = [0; 64];
        let unkeyed = AesGcm(None);
        assert_eq!(unkeyed.encrypt(0, &[], b"secret", &mut plain), 6 + TAG_BYTES);
        assert_eq!(plain[..6 + TAG_BYTES], [0; 6 + TAG_BYTES]);
    }
}
