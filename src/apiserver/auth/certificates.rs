//! Expiry and revocation of client certificates.
//!
//! Client certificates: whether one that TLS has verified still counts. Asked with every request, for a connection may last
//! longer than the certificate it began with.

use jiff::Timestamp;

use crate::pki::Series;

/// What of a client certificate is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The series that it is of (`OU`).
    pub series: Option<String>,
    /// When it ends, in seconds since 1970.
    pub ends: i64,
}

/// Why a certificate does not count, in words for its bearer. Nothing where it does.
///
/// When it began does not matter: a clock that was set back would shut its administrators out.
pub fn fault(certificate: &Certificate, series: Option<&Series>, now: i64) -> Option<String> {
    let renew = "`slipway kubeconfig` on the appliance prints a new one";
    if series.is_some_and(|series| !series.accepts(certificate.series.as_deref())) {
        return Some(format!("the client certificate was revoked, or is of an older version of Slipway; {renew}"));
    }
    if certificate.ends <= now {
        let ended = Timestamp::from_second(certificate.ends).map_or_else(|_| String::new(), |end| end.to_string());
        let clock = Timestamp::from_second(now).map_or_else(|_| String::new(), |now| now.to_string());
        return Some(format!(
            "the client certificate ended at {ended}, and the appliance's clock says {clock}; {renew}"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_counts_until_it_ends_or_its_series_does() {
        let folder = tempfile::tempdir().unwrap();
        let series = crate::pki::Authority::open(folder.path()).unwrap().series().clone();
        let id = std::fs::read_to_string(folder.path().join("client-series")).unwrap();
        let mine = format!("slipway:{}", id.trim());
        for (of, ends, series, wanted) in [
            (Some(mine.as_str()), 101, Some(&series), None),
            (Some(mine.as_str()), 100, Some(&series), Some("ended at 1970-01-01T00:01:40Z")),
            (Some("slipway:other"), 101, Some(&series), Some("revoked")),
            (None, 101, Some(&series), Some("revoked")),
            (None, 101, None, None),
            (None, 99, None, Some("ended")),
        ] {
            let certificate = Certificate { series: of.map(str::to_owned), ends };
            let found = fault(&certificate, series, 100);
            assert_eq!(found.is_some(), wanted.is_some(), "{of:?} {ends}: {found:?}");
            assert!(found.unwrap_or_default().contains(wanted.unwrap_or_default()), "{of:?} {ends}");
        }
    }
}
