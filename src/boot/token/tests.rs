//! Tests of tokens: whose they are, and how long.

use super::*;
use proptest::prelude::*;

const UID: &str = "b7f6bb1c-36c1-4b0e-8c0b-5d1a5f3a9b10";

fn tokens(byte: u8) -> BootTokens {
    BootTokens { key: Zeroizing::new([byte; KEY]) }
}

#[test]
fn a_token_says_what_was_put_in_until_it_is_old() {
    let tokens = tokens(1);
    let token = tokens.mint(UID, 7).expect("token");
    assert!(token.len() < 160 && token.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')));
    let claims = tokens.verify(&token).expect("good");
    assert_eq!((claims.uid.as_str(), claims.generation), (UID, 7));
    let life = BOOT_TOKEN_LIFE.as_secs() as i64;
    assert_eq!(tokens.verify_at(&token, claims.issued_at + life), Ok(claims.clone()));
    assert_eq!(tokens.verify_at(&token, claims.issued_at + life + 1), Err(BootTokenError::Expired));
    let other = tokens.verify(&tokens.mint(UID, 7).expect("token")).expect("good");
    assert_ne!(claims.nonce, other.nonce);
}

#[test]
fn a_session_ends_after_thirty_days_or_when_the_clock_goes_back_as_far() {
    let tokens = tokens(1);
    let claims = tokens.verify(&tokens.mint(UID, 7).expect("token")).expect("good");
    let (session, life) = (tokens.session(&claims), SESSION_LIFE.as_secs() as i64);
    for (passed, good) in [(0, true), (life, true), (-life, true), (life + 1, false), (-life - 1, false)] {
        let verified = tokens.verify_session_at(&session, claims.issued_at + passed);
        let wanted = if good { Ok(claims.clone()) } else { Err(BootTokenError::SessionEnded) };
        assert_eq!(verified, wanted, "{passed}");
    }
    let old = BootTokenClaims { issued_at: claims.issued_at - life - 1, ..claims };
    assert_eq!(tokens.verify_visit_session(&tokens.visit_session(&old)), Err(BootTokenError::SessionEnded));
}

#[test]
fn who_asked_first_keeps_others_out_for_two_minutes() {
    let tokens = tokens(1);
    let address = Ipv4Addr::new(10, 0, 0, 7);
    for (bound, at, first) in [
        (TokenBinding::Nowhere, None, false),
        (TokenBinding::Leased(address), Some(address), false),
        (TokenBinding::First(address), Some(address), true),
    ] {
        let claims = tokens.verify(&tokens.mint_bound(UID, 7, bound).expect("token")).expect("good");
        assert_eq!((claims.address, claims.first), (at, first), "{bound:?}");
        let seconds = |passed: i64| claims.others_wait(claims.issued_at + passed).map(|left| left.as_secs());
        assert_eq!([-5, 0, 1, 119, 120, 5000].map(seconds), [Some(120), Some(120), Some(119), Some(1), None, None]);
    }
}

#[test]
fn session_and_boot_tokens_do_not_pass_for_each_other() {
    let tokens = tokens(1);
    let boot = tokens.mint(UID, 7).expect("token");
    let claims = tokens.verify(&boot).expect("good");
    let session = tokens.session(&claims);
    assert_eq!(tokens.verify_session(&session), Ok(claims));
    assert_eq!(tokens.verify_session(&boot), Err(BootTokenError::Forged));
    assert_eq!(tokens.verify(&session), Err(BootTokenError::Forged));
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let visit = tokens.mint_visit(mac, Some([172, 22, 0, 100].into())).expect("token");
    let visitor = tokens.verify_visit(&visit).expect("good");
    assert_eq!((visitor.uid.as_str(), visitor.address), ("02:00:00:00:00:01", Some([172, 22, 0, 100].into())));
    let visiting = tokens.visit_session(&visitor);
    assert_eq!(tokens.verify_visit_session(&visiting), Ok(visitor));
    for foreign in [&visit, &visiting] {
        assert_eq!(tokens.verify(foreign), Err(BootTokenError::Forged));
        assert_eq!(tokens.verify_session(foreign), Err(BootTokenError::Forged));
    }
    for own in [&boot, &session] {
        assert_eq!(tokens.verify_visit(own), Err(BootTokenError::Forged));
        assert_eq!(tokens.verify_visit_session(own), Err(BootTokenError::Forged));
    }
    let ticket = tokens.mint_media(UID, 7).expect("ticket");
    assert_eq!(
        (tokens.verify(&ticket), tokens.verify_session(&ticket)),
        (Err(BootTokenError::Forged), Err(BootTokenError::Forged))
    );
    assert_eq!(tokens.verify_media(&boot), Err(BootTokenError::Forged));
    let claims = tokens.verify_media(&ticket).expect("good");
    let token = tokens.boot_token(&claims);
    assert_eq!(token, tokens.boot_token(&claims));
    assert_eq!(tokens.verify(&token), Ok(claims));
}

#[test]
fn other_keys_and_malformed_texts_are_refused() {
    let token = tokens(1).mint(UID, 7).expect("token");
    assert_eq!(tokens(2).verify(&token), Err(BootTokenError::Forged));
    for text in ["", "a", "====", "%%%", &token[..20], &"A".repeat(10_000)] {
        assert_eq!(tokens(1).verify(text), Err(BootTokenError::Malformed), "{text:.20}");
    }
    assert_eq!(tokens(1).mint("", 1), Err(MintError::Uid(0)));
    assert_eq!(tokens(1).mint(&"u".repeat(65), 1), Err(MintError::Uid(65)));
}

/// RFC 4231 section 4.2, through the same construction: a 32-byte key in a zero-filled block is that key.
#[test]
fn the_code_is_hmac_sha_256() {
    let mut block = [0; 64];
    block[..20].fill(0x0b);
    let mut code = Hmac::<Sha256>::new((&block).into());
    code.update(b"Hi There");
    let hex: String = code.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

#[test]
fn the_key_is_made_once_private_and_checked() {
    let folder = tempfile::tempdir().expect("folder");
    let pki = folder.path().join("pki");
    let token = BootTokens::open(&pki).expect("made").mint(UID, 1).expect("token");
    let path = pki.join(KEY_FILE);
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&pki).expect("listed").count(), 1);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("opened up");
    assert!(BootTokens::open(&pki).expect("read").verify(&token).is_ok());
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
    fs::write(&path, [0; 33]).expect("written");
    assert!(matches!(BootTokens::open(&pki), Err(BootKeyError::Length { length: 33, .. })));
    // What a file system leaves of a file whose content was not written when the power went.
    for byte in [0, 0xff] {
        fs::write(&path, [byte; KEY]).expect("written");
        assert!(matches!(BootTokens::open(&pki), Err(BootKeyError::Blank { .. })), "{byte}");
    }
}

proptest! {
    #[test]
    fn any_change_is_noticed(position in 0usize..134, to in 0u8..64) {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let tokens = tokens(3);
        let mut token = tokens.mint(UID, 9).expect("token").into_bytes();
        let position = position.min(token.len() - 1);
        prop_assume!(token[position] != ALPHABET[to as usize]);
        token[position] = ALPHABET[to as usize];
        prop_assert!(tokens.verify(std::str::from_utf8(&token).expect("text")).is_err());
    }
}
