//! Signed tokens: JSON Web Tokens (RFC 7519) in compact form, ES256 only, and the key set that others verify them with.
//!
//! Every token of a key begins with the same header, byte for byte, so a header is compared, never parsed: no other
//! algorithm can be asked for, and what was not made here is refused before anything of it is looked at.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Longest token that is looked at, in bytes.
pub const TOKEN_MAX: usize = 8 * 1024;
/// What stands before the point of a P-256 key in a SubjectPublicKeyInfo (RFC 5480).
const SPKI_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A key cannot be used, or a token not be signed.
#[derive(Debug, thiserror::Error)]
#[error("the token key cannot be used: {0}")]
pub struct JwtKeyError(String);

/// The key that signs tokens (ECDSA P-256).
pub struct TokenKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    id: String,
    /// First part of every token.
    header: String,
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TokenKey {
    /// The key of a PKCS #8 document.
    ///
    /// # Errors
    ///
    /// [`JwtKeyError`] when it holds no ECDSA P-256 key.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, JwtKeyError> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &random)
            .map_err(|error| JwtKeyError(error.to_string()))?;
        // As upstream names a key: the hash of its SubjectPublicKeyInfo.
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest([&SPKI_HEAD, pair.public_key().as_ref()].concat()));
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": "ES256", "kid": id}).to_string());
        Ok(Self { pair, random, id, header })
    }

    /// A key that lives as long as the process.
    ///
    /// # Errors
    ///
    /// [`JwtKeyError`] when the system gives no random numbers.
    pub fn fleeting() -> Result<Self, JwtKeyError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|error| JwtKeyError(error.to_string()))?;
        Self::from_pkcs8(document.as_ref())
    }

    /// A token with these claims.
    ///
    /// # Errors
    ///
    /// [`JwtKeyError`] when the system gives no random numbers.
    pub fn sign(&self, claims: &Value) -> Result<String, JwtKeyError> {
        let signed = format!("{}.{}", self.header, URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature =
            self.pair.sign(&self.random, signed.as_bytes()).map_err(|error| JwtKeyError(error.to_string()))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The claims of a token that this key signed; `None` for every other text.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let rest = token.strip_prefix(&self.header)?.strip_prefix('.')?;
        let (claims, signature) = rest.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok().filter(|signature| signature.len() == 64)?;
        let signed = &token[..self.header.len() + 1 + claims.len()];
        ring::signature::UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key())
            .verify(signed.as_bytes(), &signature)
            .ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    /// The public half as a JSON Web Key Set (RFC 7517).
    pub fn key_set(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let part = |range| URL_SAFE_NO_PAD.encode(point.get(range).unwrap_or_default());
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256",
            "x": part(1..33), "y": part(33..65),
        }]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_key_signed_is_read() {
        let key = TokenKey::fleeting().unwrap();
        let claims = json!({"sub": "system:serviceaccount:a:b", "exp": 1});
        let token = key.sign(&claims).unwrap();
        assert_eq!(key.verify(&token), Some(claims.clone()));
        let parts: Vec<&str> = token.split('.').collect();
        let other = TokenKey::fleeting().unwrap();
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let none = encode(r#"{"alg":"none"}"#);
        let forged = encode(r#"{"sub":"system:serviceaccount:a:c"}"#);
        for bad in [
            String::new(),
            "guessed".into(),
            "a.b.c".into(),
            other.sign(&claims).unwrap(),
            format!("{}.{}.", none, parts[1]),
            format!("{}.{}.{}", none, parts[1], parts[2]),
            format!("{}.{}.", parts[0], parts[1]),
            format!("{}.{}.{}", parts[0], forged, parts[2]),
            format!("{}.{}.{}", parts[0], parts[1], &parts[2][..80]),
            format!("{token}."),
            format!("{token}="),
            format!(" {token}"),
            token[..token.len() - 20].to_owned(),
        ] {
            assert_eq!(key.verify(&bad), None, "{bad}");
        }
    }

    #[test]
    fn others_can_verify_with_the_key_set() {
        let key = TokenKey::fleeting().unwrap();
        let token = key.sign(&json!({"a": 1})).unwrap();
        let set = key.key_set();
        let coordinate = |name: &str| URL_SAFE_NO_PAD.decode(set["keys"][0][name].as_str().unwrap()).unwrap();
        let point = [vec![4], coordinate("x"), coordinate("y")].concat();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        ring::signature::UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap())
            .unwrap();
    }

    #[test]
    fn keys_are_named_as_upstream_names_them() {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = TokenKey::from_pkcs8(&pair.serialize_der()).unwrap();
        use rcgen::PublicKeyData;
        assert_eq!(key.id, URL_SAFE_NO_PAD.encode(Sha256::digest(pair.subject_public_key_info())));
        assert!(TokenKey::from_pkcs8(b"junk").is_err());
    }
}
