//! The keys of a cluster's hosts: believed at first contact, held against at each later one. Pure.
//!
//! They are kept as lines of a `known_hosts` (sshd(8)), each with a mark of the installation that it was learned of as its comment.
//! When a host is installed anew its key goes, and the mark says so. Whoever may write ConfigMaps of the namespace may write the
//! lines, so each is read as what it may be: an address of a node and a key, no pattern and no authority.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::rack::RackHost;
use super::ssh_key::is_key;
use crate::hex::hex;

/// Most lines that are looked at.
const LINES_MAX: usize = 4096;
/// Most keys of one address: a host has one of each kind.
const KEYS_MAX: usize = 4;
/// Longest key in base64: RSA of 16384 bits has 2750 letters.
const KEY_MAX: usize = 3000;

/// A key of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshHostKey {
    /// Where the host is.
    pub address: IpAddr,
    /// Its kind, a blank, and the key in base64.
    pub key: String,
    /// Of which installation.
    pub mark: String,
}

/// By address which installation is there.
pub type InstallationIds = BTreeMap<IpAddr, String>;

/// The mark of a host's installation.
pub fn mark(host: &RackHost, user_data: &str) -> String {
    let is_own = host.user_data.as_deref() == Some(user_data);
    let installed = host.installed_at.filter(|_| is_own).unwrap_or_default();
    let uid = host.view.metadata.uid.as_deref().unwrap_or_default();
    let digest = Sha256::digest(format!("{uid}\0{installed}"));
    hex(&digest[..8])
}

/// The installations of hosts that a Provisioning has. One that it installed is another one after each time; of one that others
/// installed nobody tells.
pub fn marks<'h>(hosts: impl IntoIterator<Item = &'h RackHost>, user_data: &str) -> InstallationIds {
    let of_host = |host: &'h RackHost| {
        let mark = mark(host, user_data);
        // At whichever card it is reached.
        let addresses = host.leases.iter().filter_map(|(_, address)| address.parse::<IpAddr>().ok());
        addresses.map(move |address| (address.to_canonical(), mark.clone()))
    };
    hosts.into_iter().flat_map(of_host).collect()
}

/// The keys in a text; what is no line of a key of one host is passed over.
pub fn read(text: &str) -> Vec<SshHostKey> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (address, kind, key) = (words.next()?, words.next()?, words.next()?);
        let address: IpAddr = address.parse().ok()?;
        let blob = Some(key).filter(|key| key.len() <= KEY_MAX).and_then(|key| STANDARD.decode(key).ok())?;
        let mark = words.next().filter(|mark| mark.len() == 16 && mark.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let key = is_key(kind, &blob).then(|| format!("{kind} {key}"))?;
        Some(SshHostKey { address: address.to_canonical(), key, mark: mark.unwrap_or_default().to_owned() })
    };
    text.lines().take(LINES_MAX).filter_map(line).collect()
}

/// Those that hold: of an address where something else is installed now, none.
pub fn valid(known: Vec<SshHostKey>, marks: &InstallationIds) -> Vec<SshHostKey> {
    let holds = |key: &SshHostKey| marks.get(&key.address).is_none_or(|mark| *mark == key.mark);
    known.into_iter().filter(holds).collect()
}

/// What is known after a run: what was known before, and the first keys of hosts that nothing was known of.
pub fn learned(known: Vec<SshHostKey>, run: Vec<SshHostKey>, marks: &InstallationIds) -> Vec<SshHostKey> {
    let mut all = valid(known, marks);
    let (before, mut counts) = (all.len(), BTreeMap::<IpAddr, usize>::new());
    for new in run {
        let is_known = all[..before].iter().any(|one| one.address == new.address);
        let Some(mark) = marks.get(&new.address).filter(|_| !is_known) else { continue };
        let new = SshHostKey { mark: mark.clone(), ..new };
        let count = counts.entry(new.address).or_default();
        if *count < KEYS_MAX && !all.contains(&new) {
            *count += 1;
            all.push(new);
        }
    }
    all.sort_by_key(|key| key.address);
    all.truncate(LINES_MAX);
    all
}

/// As a `known_hosts`; marks are comments in it.
pub fn text(keys: &[SshHostKey]) -> String {
    let mut text = String::new();
    for SshHostKey { address, key, mark } in keys {
        writeln!(text, "{}", format!("{address} {key} {mark}").trim_end()).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(number: u8) -> String {
        let mut blob = vec![0, 0, 0, 11];
        blob.extend(b"ssh-ed25519");
        blob.extend([0, 0, 0, 32]);
        blob.extend([number; 32]);
        STANDARD.encode(blob)
    }

    fn line(address: &str, number: u8, mark: &str) -> String {
        format!("{address} ssh-ed25519 {} {mark}", blob(number))
    }

    const ONE: &str = "0123456789abcdef";
    const OTHER: &str = "fedcba9876543210";

    #[test]
    fn only_a_key_of_one_address_is_read() {
        let good = [line("10.0.0.1", 1, ONE), line("2001:db8::1", 2, ""), line("10.0.0.2", 3, "no mark")];
        let read_ = read(&good.join("\n"));
        assert_eq!(read_.iter().map(|key| key.mark.as_str()).collect::<Vec<_>>(), [ONE, "", ""]);
        assert_eq!(read(&text(&read_)), read_);
        for bad in [
            line("*", 1, ONE),
            line("10.0.0.1,10.0.0.2", 1, ONE),
            line("!10.0.0.1", 1, ONE),
            line("|1|c2FsdA==|aGFzaA==", 1, ONE),
            line("@cert-authority 10.0.0.1", 1, ONE),
            line("@revoked 10.0.0.1", 1, ONE),
            line("[10.0.0.1]:22", 1, ONE),
            line("host", 1, ONE),
            format!("10.0.0.1 ssh-rsa {} {ONE}", blob(1)),
            format!("10.0.0.1 ssh-ed25519 {}", "A".repeat(KEY_MAX + 1)),
            "10.0.0.1 ssh-ed25519".into(),
            "10.0.0.1 ssh-ed25519 !".into(),
            "# 10.0.0.1".into(),
            "\0".into(),
        ] {
            assert_eq!(read(&bad), [], "{bad}");
        }
    }

    #[test]
    fn a_key_is_learned_once_and_forgotten_with_its_installation() {
        let marks = |mark: &str| InstallationIds::from([("10.0.0.1".parse().unwrap(), mark.to_owned())]);
        let first = learned(Vec::new(), read(&line("10.0.0.1", 1, "")), &marks(ONE));
        assert_eq!(text(&first), format!("{}\n", line("10.0.0.1", 1, ONE)));
        // Another key of the same installation is none.
        let same = learned(first.clone(), read(&line("10.0.0.1", 2, "")), &marks(ONE));
        assert_eq!(same, first);
        assert_eq!(valid(first.clone(), &marks(OTHER)), []);
        let anew = learned(first.clone(), read(&line("10.0.0.1", 2, "")), &marks(OTHER));
        assert_eq!(text(&anew), format!("{}\n", line("10.0.0.1", 2, OTHER)));
        // Whoever is not there now is known still; and who is nobody's host is not learned.
        let stays = learned(first.clone(), read(&line("10.0.0.9", 3, "")), &InstallationIds::new());
        assert_eq!(stays, first);
        let flood: Vec<String> = (0..100).map(|number| line("10.0.0.1", number, "")).collect();
        assert_eq!(learned(Vec::new(), read(&flood.join("\n")), &marks(ONE)).len(), KEYS_MAX);
    }
}
