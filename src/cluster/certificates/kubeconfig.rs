//! The kubeconfig of a cluster's administrator. Pure.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::pair::{self, Pair};

/// A certificate that ends earlier is made anew: half of the time that it is good for.
const RENEW_BEFORE: Duration = Duration::from_secs(365 * 24 * 3600 / 2);
/// Longest text that is looked at, in bytes.
const TEXT_MAX: usize = 256 << 10;

/// A kubeconfig with a new certificate. `server` is a URL.
///
/// # Errors
///
/// When the authority cannot sign.
pub fn make(cluster: &str, server: &str, ca: &Pair, now: SystemTime) -> Result<String, String> {
    let own = pair::administrator(ca, now)?;
    let (user, context) = (format!("{cluster}-admin"), format!("{cluster}-admin@{cluster}"));
    let data = |pem: &str| STANDARD.encode(pem);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": context,
        "clusters": [{"name": cluster, "cluster": {
            "server": server, "certificate-authority-data": data(&ca.certificate),
        }}],
        "contexts": [{"name": context, "context": {"cluster": cluster, "user": user}}],
        "users": [{"name": user, "user": {
            "client-certificate-data": data(&own.certificate), "client-key-data": data(&own.key),
        }}],
    });
    serde_saphyr::to_string(&config).map_err(|error| error.to_string())
}

/// When the kubeconfig that was made here is to be made anew, and with which server.
///
/// # Errors
///
/// When it is none, or has no certificate.
pub fn renewal(cluster: &str, text: &[u8]) -> Result<(SystemTime, String), String> {
    if text.len() > TEXT_MAX {
        return Err(format!("it has more than {} KiB", TEXT_MAX >> 10));
    }
    let text = std::str::from_utf8(text).map_err(|_| "it is no text")?;
    let config: Value = serde_saphyr::from_str(text).map_err(|_| "it is no YAML")?;
    let mut ends = None;
    for user in config["users"].as_array().into_iter().flatten() {
        let Some(data) = user["user"]["client-certificate-data"].as_str() else { continue };
        let pem = STANDARD.decode(data).ok().and_then(|pem| String::from_utf8(pem).ok());
        let end = pem.and_then(|pem| pair::ends(&pem)).ok_or("it has a broken client-certificate-data")?;
        ends = Some(ends.map_or(end, |first: SystemTime| first.min(end)));
    }
    let ends = ends.ok_or("it has no client-certificate-data")?;
    let known = config["clusters"].as_array().into_iter().flatten().find(|one| one["name"] == cluster);
    let server = known.and_then(|one| one["cluster"]["server"].as_str()).ok_or("it has no server")?;
    Ok((ends.checked_sub(RENEW_BEFORE).unwrap_or(SystemTime::UNIX_EPOCH), server.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::pair::{CertificatePurpose, PairRequest};
    use super::*;

    #[test]
    fn a_kubeconfig_is_made_anew_half_a_year_before_its_end() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let ca = pair::make(CertificatePurpose::Ca, PairRequest::default(), now).unwrap();
        let text = make("c", "https://10.0.0.1:6443", &ca, now).unwrap();
        let config: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(config["current-context"], "c-admin@c");
        assert_eq!(config["contexts"][0]["context"], json!({"cluster": "c", "user": "c-admin"}));
        let authority = config["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
        assert_eq!(STANDARD.decode(authority).unwrap(), ca.certificate.as_bytes());
        let (renew, server) = renewal("c", text.as_bytes()).unwrap();
        assert_eq!((renew, server.as_str()), (now + RENEW_BEFORE, "https://10.0.0.1:6443"));
    }

    #[test]
    fn what_is_no_kubeconfig_is_named() {
        for (text, wanted) in [
            ("[", "YAML"),
            ("a: b", "no client-certificate-data"),
            ("users: [{user: {client-certificate-data: '***'}}]", "broken"),
            ("users: [{user: {client-certificate-data: eA==}}]", "broken"),
        ] {
            let reason = renewal("c", text.as_bytes()).unwrap_err();
            assert!(reason.contains(wanted), "{reason}");
        }
        assert!(renewal("c", &[0xff]).is_err());
        assert!(renewal("c", &vec![b' '; TEXT_MAX + 1]).unwrap_err().contains("KiB"));
    }
}
