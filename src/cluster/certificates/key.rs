//! Private keys in the forms that there are of them. Pure.
//!
//! Keys that are made here are PKCS #8. What users bring, or Cluster API's managers left behind, may be PKCS #1 (`RSA PRIVATE KEY`)
//! or SEC 1 (`EC PRIVATE KEY`): the same key in another wrapping.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, SignatureAlgorithm};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Version 0, then the algorithm: RSA.
const RSA: &[u8] = &[2, 1, 0, 0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];
/// Version 0, then the algorithm: elliptic curve P-256.
const P256: &[u8] =
    &[2, 1, 0, 0x30, 19, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
/// Version 0, then the algorithm: elliptic curve P-384.
const P384: &[u8] = &[2, 1, 0, 0x30, 16, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 5, 0x2b, 0x81, 4, 0, 0x22];
/// Longest key, in bytes.
const LONGEST: usize = 64 << 10;

/// `ring` takes RSA keys of two primes of equal length, of which that is a multiple of 512 bits.
const UNUSABLE: &str = "it is neither an RSA key of 2048, 3072 or 4096 bits (with two primes, and an exponent of 65537 or more) \
                        nor an ECDSA key on P-256 or P-384";

/// The key that a PEM text holds.
///
/// # Errors
///
/// When it holds none that can sign.
pub fn read(pem: &[u8]) -> Result<KeyPair, String> {
    if pem.len() > LONGEST {
        return Err(format!("it has more than {} KiB", LONGEST >> 10));
    }
    let unusable = |_| UNUSABLE.to_owned();
    match PrivateKeyDer::from_pem_slice(pem).map_err(|_| "it holds no private key in PEM".to_owned())? {
        PrivateKeyDer::Pkcs8(key) => KeyPair::try_from(&PrivateKeyDer::Pkcs8(key)).map_err(unusable),
        PrivateKeyDer::Pkcs1(key) => wrapped(RSA, key.secret_pkcs1_der(), &PKCS_RSA_SHA256).map_err(unusable),
        PrivateKeyDer::Sec1(key) => wrapped(P256, key.secret_sec1_der(), &PKCS_ECDSA_P256_SHA256)
            .or_else(|_| wrapped(P384, key.secret_sec1_der(), &PKCS_ECDSA_P384_SHA384))
            .map_err(unusable),
        _ => Err("it holds a private key of an unknown form".to_owned()),
    }
}

fn wrapped(algorithm: &[u8], key: &[u8], sign: &'static SignatureAlgorithm) -> Result<KeyPair, rcgen::Error> {
    let inner = [algorithm, &tagged(4, key)].concat();
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(tagged(0x30, &inner)), sign)
}

/// A value of DER: tag, length, content. Keys are shorter than 64 KiB.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let [.., high, low] = content.len().to_be_bytes();
    let mut der = vec![tag];
    match content.len() {
        0..=0x7f => der.push(low),
        0x80..=0xff => der.extend([0x81, low]),
        _ => der.extend([0x82, high, low]),
    }
    der.extend(content);
    der
}

#[cfg(test)]
pub(super) mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::PublicKeyData;

    use super::*;

    fn pem(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }

    /// An RSA key that is used for nothing else, in PKCS #8.
    fn rsa() -> Vec<u8> {
        STANDARD.decode(include_str!("key/rsa.txt").replace('\n', "")).unwrap()
    }

    /// The same as others write it.
    pub(in crate::cluster::certificates) fn rsa_pkcs1() -> String {
        pem("RSA PRIVATE KEY", inner(&rsa()))
    }

    /// What the last octet string of a PKCS #8 key holds: one of more than 127 bytes, after an algorithm of its length.
    fn inner(pkcs8: &[u8]) -> &[u8] {
        let at = pkcs8.iter().enumerate().position(|(at, byte)| {
            let rest = &pkcs8[at + 1..];
            let length = match rest {
                [0x82, high, low, ..] => 3 + usize::from(*high) * 256 + usize::from(*low),
                [0x81, length, ..] => 2 + usize::from(*length),
                [length, ..] => 1 + usize::from(*length),
                [] => return false,
            };
            *byte == 4 && length == rest.len() && length > 64
        });
        let rest = &pkcs8[at.unwrap() + 1..];
        match rest[0] {
            0x82 => &rest[3..],
            0x81 => &rest[2..],
            _ => &rest[1..],
        }
    }

    #[test]
    fn each_form_is_read() {
        let (p256, p384) = (KeyPair::generate().unwrap(), KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap());
        for (text, algorithm) in [
            (pem("PRIVATE KEY", &rsa()), &PKCS_RSA_SHA256),
            (rsa_pkcs1(), &PKCS_RSA_SHA256),
            (p256.serialize_pem(), &PKCS_ECDSA_P256_SHA256),
            (pem("EC PRIVATE KEY", inner(p256.serialized_der())), &PKCS_ECDSA_P256_SHA256),
            (pem("EC PRIVATE KEY", inner(p384.serialized_der())), &PKCS_ECDSA_P384_SHA384),
        ] {
            let key = read(text.as_bytes()).unwrap_or_else(|reason| panic!("{reason}\n{text}"));
            assert!(key.is_compatible(algorithm), "{text}");
            let wanted = match algorithm {
                algorithm if *algorithm == PKCS_RSA_SHA256 => {
                    read(rsa_pkcs1().as_bytes()).unwrap().subject_public_key_info()
                }
                algorithm if *algorithm == PKCS_ECDSA_P256_SHA256 => p256.subject_public_key_info(),
                _ => p384.subject_public_key_info(),
            };
            assert_eq!(key.subject_public_key_info(), wanted, "{text}");
        }
    }

    #[test]
    fn rsa_keys_of_the_sizes_that_are_told_are_read_and_no_others() {
        let of = |text: &str| pem("PRIVATE KEY", &STANDARD.decode(text.replace('\n', "")).unwrap());
        for (bits, text) in [("3072", include_str!("key/rsa3072.txt")), ("4096", include_str!("key/rsa4096.txt"))] {
            assert!(read(of(text).as_bytes()).is_ok() && UNUSABLE.contains(bits), "{bits}");
        }
        let refused = read(of(include_str!("key/rsa3000.txt")).as_bytes()).unwrap_err();
        assert!(refused.contains("2048, 3072 or 4096 bits") && !refused.contains(" to "), "{refused}");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let mut broken = rsa();
        broken[300..400].fill(0);
        let broken = pem("RSA PRIVATE KEY", inner(&broken));
        for text in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &broken] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(read(&vec![b'x'; LONGEST + 1]).unwrap_err().contains("KiB"));
    }
}
