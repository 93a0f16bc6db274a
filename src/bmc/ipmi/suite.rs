//! Cipher suites 3 and 17: keys, integrity, confidentiality (sections 13.28 to 13.32).

use aes::Aes128;
use cbc::cipher::block_padding::NoPadding;
use cbc::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::packet::{self, Ignored, V20};

/// Flags of the payload type: signed and encrypted.
const PROTECTED: u8 = 0xc0;
/// "Next header" of RMCP+ (section 13.6).
const NEXT_HEADER: u8 = 0x07;
const BLOCK: usize = 16;

/// A cipher suite that is spoken (table 22-20 and errata 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CipherSuite {
    /// 17: RAKP-HMAC-SHA256, HMAC-SHA256-128, AES-CBC-128.
    Sha256,
    /// 3: RAKP-HMAC-SHA1, HMAC-SHA1-96, AES-CBC-128.
    Sha1,
}

impl CipherSuite {
    /// All of them, best first.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha1];

    /// Number of the suite.
    pub fn id(self) -> u8 {
        match self {
            Self::Sha256 => 17,
            Self::Sha1 => 3,
        }
    }

    /// Authentication, integrity and confidentiality algorithm, as in Open Session.
    pub fn algorithms(self) -> [u8; 3] {
        match self {
            Self::Sha256 => [3, 4, 1],
            Self::Sha1 => [1, 1, 1],
        }
    }

    /// The suite of these algorithms.
    pub fn from_algorithms(algorithms: [u8; 3]) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.algorithms() == algorithms)
    }

    /// Bytes of a key exchange authentication code.
    pub fn digest_len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha1 => 20,
        }
    }

    /// Bytes of a packet's integrity code.
    pub fn integrity_len(self) -> usize {
        match self {
            Self::Sha256 => 16,
            Self::Sha1 => 12,
        }
    }

    /// HMAC over the parts, one after the other.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Self::Sha1 => mac::<Hmac<Sha1>>(key, parts),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    // HMAC takes keys of every length, so this cannot fail; an empty code would match nothing.
    let Ok(mut mac) = <M as KeyInit>::new_from_slice(key) else { return Zeroizing::new(Vec::new()) };
    for part in parts {
        mac.update(part);
    }
    Zeroizing::new(mac.finalize().into_bytes().to_vec())
}

/// Compares without telling where the difference is. Empty codes never match.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    !a.is_empty() && a.len() == b.len() && bool::from(a.ct_eq(b))
}

/// Keys of an open session (section 13.32).
#[derive(Clone)]
pub struct Keys {
    suite: CipherSuite,
    k1: Zeroizing<Vec<u8>>,
    k2: Zeroizing<Vec<u8>>,
}

impl Keys {
    /// From the session integrity key.
    pub fn derive(suite: CipherSuite, sik: &[u8]) -> Self {
        Self { suite, k1: suite.hmac(sik, &[&[1; 20]]), k2: suite.hmac(sik, &[&[2; 20]]) }
    }

    /// The suite.
    pub fn suite(&self) -> CipherSuite {
        self.suite
    }

    fn aes_key(&self) -> [u8; BLOCK] {
        let mut key = [0; BLOCK];
        key.iter_mut().zip(self.k2.iter()).for_each(|(k, b)| *k = *b);
        key
    }

    /// A signed and encrypted packet. `iv` must be random.
    pub fn seal(&self, session: u32, sequence: u32, payload_type: u8, plain: &[u8], iv: [u8; BLOCK]) -> Vec<u8> {
        // Confidentiality trailer (section 13.29): pad bytes 1, 2, 3 …, then how many.
        let pad = (BLOCK - (plain.len() + 1) % BLOCK) % BLOCK;
        let mut body = Zeroizing::new(plain.to_vec());
        body.extend((1..=pad).map(|n| n as u8));
        body.push(pad as u8);
        let mut sealed = iv.to_vec();
        let len = body.len();
        let key = Zeroizing::new(self.aes_key());
        // The length is a multiple of the block, so no padding is asked for and nothing can fail.
        let cipher = cbc::Encryptor::<Aes128>::new((&*key).into(), &iv.into());
        if let Ok(out) = cipher.encrypt_padded::<NoPadding>(&mut body, len) {
            sealed.extend_from_slice(out);
        }
        let mut out = packet::encode_v20(payload_type, PROTECTED, session, sequence, &sealed);
        // Integrity pad: the signed part is a multiple of four.
        let pad = (4 - (out.len() - 4 + 2) % 4) % 4;
        out.extend(std::iter::repeat_n(0xff, pad));
        out.push(pad as u8);
        out.push(NEXT_HEADER);
        let code = self.suite.hmac(&self.k1, &[&out[4..]]);
        out.extend_from_slice(&code[..self.suite.integrity_len().min(code.len())]);
        out
    }

    /// Checks and decrypts a packet.
    pub fn open(&self, frame: &V20<'_>) -> Result<Zeroizing<Vec<u8>>, Ignored> {
        if !frame.authenticated || !frame.encrypted {
            return Err(Ignored::Unprotected);
        }
        let code_len = self.suite.integrity_len();
        let (padding, code) = frame
            .trailer
            .len()
            .checked_sub(code_len)
            .and_then(|at| frame.trailer.split_at_checked(at))
            .ok_or(Ignored::Length)?;
        let signed = &frame.after_rmcp[..frame.after_rmcp.len() - code_len];
        let want = self.suite.hmac(&self.k1, &[signed]);
        if !same(want.get(..code_len).unwrap_or_default(), code) {
            return Err(Ignored::Integrity);
        }
        match padding {
            [pad @ .., count, NEXT_HEADER] if pad.len() == usize::from(*count) => {}
            _ => return Err(Ignored::Length),
        }
        let (iv, sealed) = frame.payload.split_at_checked(BLOCK).ok_or(Ignored::Cipher)?;
        let iv: [u8; BLOCK] = iv.try_into().map_err(|_| Ignored::Cipher)?;
        if sealed.is_empty() || !sealed.len().is_multiple_of(BLOCK) {
            return Err(Ignored::Cipher);
        }
        let mut plain = Zeroizing::new(sealed.to_vec());
        let key = Zeroizing::new(self.aes_key());
        cbc::Decryptor::<Aes128>::new((&*key).into(), &iv.into())
            .decrypt_padded::<NoPadding>(&mut plain)
            .map_err(|_| Ignored::Cipher)?;
        // The pad is authenticated already; only its length must make sense. Some controllers fill it their own way.
        let pad = usize::from(plain.last().copied().unwrap_or(u8::MAX));
        if pad >= BLOCK {
            return Err(Ignored::Cipher);
        }
        let len = plain.len().checked_sub(pad + 1).ok_or(Ignored::Cipher)?;
        plain.truncate(len);
        Ok(plain)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::packet::{Frame, decode};
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    #[test]
    fn hmac_is_that_of_rfc_2202_and_rfc_4231() {
        let (key, data): (&[u8], &[u8]) = (b"Jefe", b"what do ya want for nothing?");
        let (a, b) = data.split_at(7);
        assert_eq!(*CipherSuite::Sha1.hmac(key, &[a, b]), hex("effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"));
        let want = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(*CipherSuite::Sha256.hmac(key, &[data]), hex(want));
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_and_nothing_else_does(
            plain in proptest::collection::vec(any::<u8>(), 0..80), iv: [u8; 16], sha1: bool, at: usize, flip in 1u8..
        ) {
            let suite = if sha1 { CipherSuite::Sha1 } else { CipherSuite::Sha256 };
            let keys = Keys::derive(suite, b"session integrity key");
            let sealed = keys.seal(7, 9, 0, &plain, iv);
            let open = |bytes: &[u8]| match decode(bytes)? {
                Frame::V20(frame) => keys.open(&frame),
                Frame::V15 { .. } => Err(Ignored::Unprotected),
            };
            prop_assert_eq!(&*open(&sealed).unwrap(), &plain);
            for cut in 0..sealed.len() {
                prop_assert!(open(&sealed[..cut]).is_err());
            }
            // The RMCP header is not signed; all after it is.
            let mut bad = sealed.clone();
            let at = 4 + at % (bad.len() - 4);
            bad[at] ^= flip;
            prop_assert!(open(&bad).is_err());
        }
    }
}
