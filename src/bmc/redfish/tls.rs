//! TLS towards BMCs: the system's certificate authorities and the configured ones, or no check at all when asked for.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, Error, NamedGroup, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Of so many BMCs is kept what their sessions are resumed from.
const RESUMED: usize = 32;

/// TLS settings that all connections share: the authorities of the system are many, and sessions are resumed from them.
#[derive(Debug, Default)]
pub struct Configs {
    strict: OnceLock<Result<ClientConfig, Error>>,
    any: OnceLock<Result<ClientConfig, Error>>,
}

impl Configs {
    /// The settings with or without a check of certificates; made, and the system's authorities read, on first use.
    ///
    /// # Errors
    ///
    /// When the TLS library cannot work with its own defaults.
    pub fn get(&self, verify: bool, extra_roots: &[CertificateDer<'static>]) -> Result<ClientConfig, Error> {
        let kept = if verify { &self.strict } else { &self.any };
        kept.get_or_init(|| config(verify, extra_roots)).clone()
    }
}

/// What sessions are resumed from: the last ticket of each of a few BMCs. With the certificates that it comes with, one
/// has up to 128 KiB, and [`ClientSessionMemoryCache`] alone keeps eight of each.
#[derive(Debug)]
struct Tickets(ClientSessionMemoryCache);

impl Tickets {
    fn new() -> Self {
        // It counts in tickets, eight for each server.
        Self(ClientSessionMemoryCache::new(RESUMED * 8))
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, server: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(server, group);
    }

    fn kx_hint(&self, server: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(server)
    }

    fn set_tls12_session(&self, server: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.0.set_tls12_session(server, session);
    }

    fn tls12_session(&self, server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(server)
    }

    fn remove_tls12_session(&self, server: &ServerName<'static>) {
        self.0.remove_tls12_session(server);
    }

    fn insert_tls13_ticket(&self, server: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        while self.0.take_tls13_ticket(&server).is_some() {}
        self.0.insert_tls13_ticket(server, ticket);
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(server)
    }
}

/// TLS settings. With `verify` the certificate must be signed by a known authority and name the host.
fn config(verify: bool, extra_roots: &[CertificateDer<'static>]) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    if !verify {
        let verifier = Arc::new(AnyCertificate(provider));
        return Ok(resuming(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()));
    }
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "cannot read a certificate authority of the system");
    }
    roots.add_parsable_certificates(found.certs);
    let (_, bad) = roots.add_parsable_certificates(extra_roots.iter().cloned());
    if bad > 0 {
        tracing::warn!(
            count = bad,
            "cannot read some of the configured certificate authorities: BMCs that need them are not trusted"
        );
    }
    Ok(resuming(builder.with_root_certificates(roots).with_no_client_auth()))
}

fn resuming(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::store(Arc::new(Tickets::new()));
    config
}

/// What a certificate error means to the operator, if it is one.
pub fn explain(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(e) = next {
        // rustls hides inside io::Error, whose source() skips the error itself.
        let inner = e.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
        let found = e.downcast_ref::<Error>().or_else(|| inner.and_then(|i| i.downcast_ref::<Error>()));
        if let Some(found) = found {
            return Some(match found {
                Error::InvalidCertificate(reason) => format!(
                    "its TLS certificate is not accepted ({reason:?}): add its CA to the trusted certificates of this system and restart slipway, give the BMC a certificate that names its address, or set spec.bmc.disableCertificateVerification: true"
                ),
                other => format!("TLS: {other}; check that the port speaks HTTPS (redfish+http:// is for plain HTTP)"),
            });
        }
        next = inner.map(|i| i as &(dyn std::error::Error + 'static)).or_else(|| e.source());
    }
    None
}

/// Takes every certificate; signatures of the handshake itself are still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustls::{ClientConnection, ServerConfig, ServerConnection};
    use rustls_pki_types::PrivatePkcs8KeyDer;

    use super::*;

    #[test]
    fn a_bmc_that_gives_many_tickets_has_one_kept() {
        let made = rcgen::generate_simple_self_signed(["bmc.example".to_owned()]).expect("a certificate");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let server =
            server.expect("versions").with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key.into());
        let mut server = server.expect("a server");
        server.send_tls13_tickets = 8;
        let (tickets, name) = (Arc::new(Tickets::new()), ServerName::try_from("bmc.example").expect("a name"));
        let mut config = config(false, &[]).expect("settings");
        config.resumption = Resumption::store(tickets.clone());
        for _ in 0..2 {
            let mut client = ClientConnection::new(Arc::new(config.clone()), name.clone()).expect("a client");
            let mut server = ServerConnection::new(Arc::new(server.clone())).expect("a server");
            let mut wire = Vec::new();
            for _ in 0..8 {
                while client.wants_write() {
                    client.write_tls(&mut wire).expect("written");
                }
                pass(&mut wire, |from| {
                    server.read_tls(from).and_then(|_| server.process_new_packets().map_err(io::Error::other))
                });
                while server.wants_write() {
                    server.write_tls(&mut wire).expect("written");
                }
                pass(&mut wire, |from| {
                    client.read_tls(from).and_then(|_| client.process_new_packets().map_err(io::Error::other))
                });
            }
            assert!(!client.is_handshaking());
        }
        assert!(tickets.take_tls13_ticket(&name).is_some());
        assert!(tickets.take_tls13_ticket(&name).is_none());
    }

    /// Gives all of it to the other end.
    fn pass<T>(wire: &mut Vec<u8>, mut take: impl FnMut(&mut &[u8]) -> io::Result<T>) {
        let bytes = std::mem::take(wire);
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            take(&mut left).expect("taken");
        }
    }
}
