//! SSH key pairs as OpenSSH writes them.
//!
//! <https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.key>, <https://www.rfc-editor.org/rfc/rfc8709>.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use zeroize::Zeroizing;

/// What the private key's text begins with.
const MAGIC: &[u8] = b"openssh-key-v1\0";
const KIND: &[u8] = b"ssh-ed25519";
/// The private part is filled up to a multiple of it where nothing encrypts it.
const BLOCK: usize = 8;
/// Kinds of keys that OpenSSH takes of its users and its hosts.
const KINDS: [&str; 5] =
    ["ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"];
/// Longest public key, in letters: RSA of 16384 bits has 2750.
const PUBLIC_MAX: usize = 4096;
/// Letters of a line of base64.
const LINE: usize = 70;

/// An Ed25519 key pair.
pub struct SshKey {
    /// The private key, not encrypted, as `ssh -i` reads it.
    pub private: Zeroizing<String>,
    /// The public key, as a line of `authorized_keys`.
    pub public: String,
}

/// There is no randomness, or no key in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no SSH key can be made")]
pub struct NoKey;

/// Makes one; `comment` is in both parts, and has no spaces.
///
/// # Errors
///
/// When the system has no randomness.
pub fn generate(comment: &str) -> Result<SshKey, NoKey> {
    let random = SystemRandom::new();
    let (mut seed, mut check) = (Zeroizing::new([0; 32]), [0; 4]);
    random.fill(seed.as_mut()).map_err(|_| NoKey)?;
    random.fill(&mut check).map_err(|_| NoKey)?;
    let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).map_err(|_| NoKey)?;
    Ok(written(&seed, pair.public_key().as_ref(), check, comment))
}

fn written(seed: &[u8; 32], public: &[u8], check: [u8; 4], comment: &str) -> SshKey {
    let blob = [string(KIND), string(public)].concat();
    let whole_key = Zeroizing::new([seed.as_slice(), public].concat());
    let private = [check.to_vec(), check.to_vec(), blob.clone(), string(&whole_key), string(comment.as_bytes())];
    let mut private = Zeroizing::new(private.concat());
    let fill = (1..).take((BLOCK - private.len() % BLOCK) % BLOCK);
    private.extend(fill);
    let none = string(b"none");
    let parts = [
        MAGIC.to_vec(),
        none.clone(),
        none,
        string(b""),
        1_u32.to_be_bytes().to_vec(),
        string(&blob),
        string(&private),
    ];
    let text = Zeroizing::new(STANDARD.encode(Zeroizing::new(parts.concat())));
    let mut pem = Zeroizing::new("-----BEGIN OPENSSH PRIVATE KEY-----\n".to_owned());
    for line in text.as_bytes().chunks(LINE) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem.push_str("-----END OPENSSH PRIVATE KEY-----\n");
    SshKey { private: pem, public: format!("ssh-ed25519 {} {comment}", STANDARD.encode(&blob)) }
}

/// Whether these bytes are a public key of this kind, as far as can be seen from outside (RFC 4253, section 6.6).
pub fn is_key(kind: &str, blob: &[u8]) -> bool {
    KINDS.contains(&kind) && blob.len() > kind.len() + 8 && blob.starts_with(&string(kind.as_bytes()))
}

/// Whether a text is one line of `authorized_keys` with a key, and without options.
pub fn is_public(text: &str) -> bool {
    let mut words = text.splitn(3, ' ');
    let (Some(kind), Some(key)) = (words.next(), words.next()) else { return false };
    let comment = words.next().unwrap_or_default();
    let is_line = text.len() <= PUBLIC_MAX && comment.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    is_line && STANDARD.decode(key).is_ok_and(|blob| is_key(kind, &blob))
}

/// Bytes with their number before them.
fn string(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or_default();
    [length.to_be_bytes().as_slice(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;
    use crate::needs;

    #[test]
    fn keys_are_new_each_time_and_of_lines_that_openssh_takes() {
        let (one, other) = (generate("slipway:rack/edge").unwrap(), generate("slipway:rack/edge").unwrap());
        assert!(one.public != other.public && one.private != other.private);
        assert!(
            one.public.starts_with("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI")
                && one.public.ends_with(" slipway:rack/edge")
        );
        assert!(one.private.lines().all(|line| line.len() <= LINE), "{}", one.public);
        // The filling depends on the comment's length: each of its lengths is tried.
        for length in 0..BLOCK {
            let key = written(&[7; 32], &[9; 32], [1, 2, 3, 4], &"c".repeat(length));
            let text: String = key.private.lines().filter(|line| !line.starts_with('-')).collect();
            let bytes = STANDARD.decode(text).unwrap();
            // Magic, three strings, the number of keys, the public key: then the length of the private part.
            let at = MAGIC.len() + 8 + 8 + 4 + 4 + 4 + 51;
            let private = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            assert_eq!((private % BLOCK, at + 4 + private), (0, bytes.len()), "{length}");
        }
    }

    #[test]
    fn a_public_key_is_one_line_of_a_key_and_nothing_else() {
        let key = generate("slipway:rack/edge").unwrap().public;
        let (_, rest) = key.split_once(' ').unwrap();
        assert!(is_public(&key) && is_public(key.rsplit_once(' ').unwrap().0));
        for bad in [
            String::new(),
            "ssh-ed25519".into(),
            "ssh-ed25519 AAAA".into(),
            format!("ssh-rsa {rest}"),
            format!("command=\"id\" {key}"),
            format!("{key}\n{key}"),
            format!("{key}\u{1b}[2J"),
            format!(" {key}"),
            format!("{key} {}", "a".repeat(PUBLIC_MAX)),
        ] {
            assert!(!is_public(&bad), "{bad}");
        }
    }

    #[test]
    fn openssh_reads_the_private_key() {
        if !needs::program("ssh-keygen") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for comment in ["a", "ab", "slipway:rack/edge"] {
            let key = generate(comment).unwrap();
            let file = folder.path().join(comment.replace('/', "-"));
            fs::write(&file, key.private.as_bytes()).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            let out = Command::new("ssh-keygen").args(["-y", "-f"]).arg(&file).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            assert_eq!(String::from_utf8_lossy(&out.stdout).trim_end(), key.public);
        }
    }
}
