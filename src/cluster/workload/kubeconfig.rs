//! What a Secret's kubeconfig leads to. Pure.
//!
//! Whoever may write a Secret has written it. So nothing is run that it names, no file is read, and no proxy is gone by: what is
//! there is taken from the text itself, or the kubeconfig is refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use reqwest::Url;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde_json::Value;

/// Most bytes of a kubeconfig.
const TEXT_MAX: usize = 256 << 10;
/// Most nodes of its YAML.
const NODES_MAX: usize = 20_000;

/// Where a cluster is reached, and as whom.
pub(super) struct WorkloadTarget {
    /// Base of all URLs.
    pub server: Url,
    /// Host and port are these.
    pub port: u16,
    /// What TLS goes by.
    pub tls: rustls::ClientConfig,
    /// `Authorization`, where there is no certificate.
    pub login: Option<HeaderValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct KubeconfigFile {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    contexts: Vec<NamedEntry<KubeconfigContext>>,
    #[serde(default)]
    clusters: Vec<NamedEntry<KubeconfigCluster>>,
    #[serde(default)]
    users: Vec<NamedEntry<KubeconfigUser>>,
}

#[derive(Deserialize)]
struct NamedEntry<T> {
    #[serde(default)]
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    is: T,
}

#[derive(Deserialize)]
struct KubeconfigContext {
    #[serde(default)]
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct KubeconfigCluster {
    #[serde(default)]
    server: String,
    #[serde(default)]
    certificate_authority_data: String,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct KubeconfigUser {
    #[serde(default)]
    client_certificate_data: String,
    #[serde(default)]
    client_key_data: String,
    #[serde(default)]
    token: String,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// What else a cluster may have, for it changes nothing here.
const OF_CLUSTERS: &[&str] = &["extensions", "disable-compression"];
/// The same of a user.
const OF_USERS: &[&str] = &["extensions"];

/// What its current context is made of.
struct Current {
    name: String,
    context: KubeconfigContext,
    cluster: KubeconfigCluster,
    user: KubeconfigUser,
}

/// Reads a kubeconfig.
///
/// # Errors
///
/// Why it cannot be used.
pub(super) fn read(text: &[u8]) -> Result<WorkloadTarget, String> {
    let Current { cluster, user, .. } = current(text)?;
    target(&cluster, &user)
}

/// The current context of a kubeconfig, written anew with what is known to be harmless: for programs that would run what else a
/// kubeconfig may name.
///
/// # Errors
///
/// Why it cannot be used.
pub(super) fn plain(text: &[u8]) -> Result<String, String> {
    let Current { name, context, cluster, user } = current(text)?;
    target(&cluster, &user)?;
    let login = [
        ("client-certificate-data", user.client_certificate_data),
        ("client-key-data", user.client_key_data),
        ("token", user.token),
    ];
    let login: serde_json::Map<String, Value> = login
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(key, text)| (key.to_owned(), text.into()))
        .collect();
    let plain = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": context.cluster, "user": context.user}}],
        "clusters": [{"name": context.cluster, "cluster": {
            "server": cluster.server, "certificate-authority-data": cluster.certificate_authority_data,
        }}],
        "users": [{"name": context.user, "user": login}],
    });
    serde_saphyr::to_string(&plain).map_err(|error| error.to_string())
}

fn current(text: &[u8]) -> Result<Current, String> {
    if text.len() > TEXT_MAX {
        return Err(format!("it has more than {} KiB", TEXT_MAX >> 10));
    }
    let text = std::str::from_utf8(text).map_err(|_| "it is no text")?;
    let budget = serde_saphyr::budget! { max_nodes: NODES_MAX, max_total_scalar_bytes: TEXT_MAX };
    let text: KubeconfigFile = serde_saphyr::from_str_with_options(text, serde_saphyr::options! { budget: budget })
        // The error's text shows lines of the file, in which keys may be.
        .map_err(|_| "it is no kubeconfig in YAML")?;
    let name = text.current_context;
    let context = named(text.contexts, &name).ok_or("its current-context is not among its contexts")?;
    let cluster = named(text.clusters, &context.cluster).ok_or("the context's cluster is not among its clusters")?;
    let user = named(text.users, &context.user).ok_or("the context's user is not among its users")?;
    refuse(&cluster.rest, OF_CLUSTERS, "cluster")?;
    refuse(&user.rest, OF_USERS, "user")?;
    Ok(Current { name, context, cluster, user })
}

fn target(cluster: &KubeconfigCluster, user: &KubeconfigUser) -> Result<WorkloadTarget, String> {
    let server = Url::parse(&cluster.server).map_err(|_| "the cluster's server is no URL")?;
    if server.scheme() != "https" || !server.has_host() {
        return Err("the cluster's server is not https://HOST:PORT".to_owned());
    }
    if !server.username().is_empty() || server.password().is_some() || server.query().is_some() {
        return Err("the cluster's server has a login or a query".to_owned());
    }
    let port = server.port_or_known_default().ok_or("the cluster's server has no port")?;
    let (tls, login) = (tls(cluster, user)?, login(user)?);
    Ok(WorkloadTarget { server, port, tls, login })
}

fn named<T>(all: Vec<NamedEntry<T>>, name: &str) -> Option<T> {
    all.into_iter().find(|one| one.name == name).map(|one| one.is)
}

fn refuse(rest: &serde_json::Map<String, Value>, harmless: &[&str], whose: &str) -> Result<(), String> {
    let set = |value: &Value| !(value.is_null() || *value == Value::Bool(false) || value.as_str() == Some(""));
    match rest.iter().find(|(key, value)| !harmless.contains(&key.as_str()) && set(value)) {
        None => Ok(()),
        Some((key, _)) => {
            let key: String = key.chars().filter(|c| !c.is_control()).take(60).collect();
            Err(format!(
                "its {whose} has {key:?}; only certificate-authority-data, client-certificate-data, client-key-data and token are used"
            ))
        }
    }
}

fn tls(cluster: &KubeconfigCluster, user: &KubeconfigUser) -> Result<rustls::ClientConfig, String> {
    let decoded = |text: &str, what: &str| STANDARD.decode(text.trim()).map_err(|_| format!("its {what} is no base64"));
    let certificates = |text: &str, what: &str| -> Result<Vec<CertificateDer<'static>>, String> {
        let pem = decoded(text, what)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let found = found.ok().filter(|found| !found.is_empty());
        found.ok_or_else(|| format!("its {what} holds no certificate"))
    };
    let mut roots = rustls::RootCertStore::empty();
    let what = "certificate-authority-data";
    for certificate in certificates(&cluster.certificate_authority_data, what)? {
        roots.add(certificate).map_err(|error| format!("its {what} cannot be used: {error}"))?;
    }
    let provider = rustls::crypto::ring::default_provider();
    let tls = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    if user.client_certificate_data.is_empty() && user.client_key_data.is_empty() {
        return Ok(tls.with_no_client_auth());
    }
    let chain = certificates(&user.client_certificate_data, "client-certificate-data")?;
    let key = decoded(&user.client_key_data, "client-key-data")?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| "its client-key-data holds no key")?;
    tls.with_client_auth_cert(chain, key).map_err(|error| format!("its client certificate cannot be used: {error}"))
}

fn login(user: &KubeconfigUser) -> Result<Option<HeaderValue>, String> {
    if user.token.is_empty() {
        return Ok(None);
    }
    let mut value = HeaderValue::try_from(format!("Bearer {}", user.token.trim())).map_err(|_| "its token is none")?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts:\n- name: x\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        )
    }

    fn authority() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
        STANDARD.encode(certificate.pem())
    }

    #[test]
    fn what_is_in_the_text_is_used() {
        let server = format!("server: 'https://10.0.0.1:6443/prefix', certificate-authority-data: {}", authority());
        let target = read(text(&server, "token: secret").as_bytes()).unwrap_or_else(|reason| panic!("{reason}"));
        assert_eq!((target.server.as_str(), target.port), ("https://10.0.0.1:6443/prefix", 6443));
        assert_eq!(target.login.unwrap().to_str().unwrap(), "Bearer secret");
    }

    #[test]
    fn what_is_handed_on_has_the_current_context_alone() {
        let server = format!("server: 'https://10.0.0.1:6443', certificate-authority-data: {}", authority());
        let more = "- name: other\n  user: {exec: {command: sh}}\n";
        let plain = plain((text(&server, "token: 'a: b'") + more).as_bytes()).unwrap();
        assert!(!plain.contains("exec") && plain.contains("current-context: x"), "{plain}");
        let again = read(plain.as_bytes()).unwrap_or_else(|reason| panic!("{reason}"));
        assert_eq!(again.login.unwrap().to_str().unwrap(), "Bearer a: b");
        assert!(super::plain(text(&server, "exec: {command: sh}").as_bytes()).unwrap_err().contains("\"exec\""));
    }

    #[test]
    fn whatever_leads_elsewhere_is_refused() {
        let ca = authority();
        let server = format!("server: 'https://10.0.0.1:6443', certificate-authority-data: {ca}");
        let rows = [
            (text(&format!("{server}, proxy-url: 'http://x'"), ""), "\"proxy-url\""),
            (text(&format!("{server}, insecure-skip-tls-verify: true"), ""), "\"insecure-skip-tls-verify\""),
            (text("server: 'https://x', certificate-authority: /etc/passwd", ""), "\"certificate-authority\""),
            (text(&server, "exec: {command: sh, args: []}"), "\"exec\""),
            (text(&server, "tokenFile: /etc/passwd"), "\"tokenFile\""),
            (text(&server, "client-key: /etc/passwd"), "\"client-key\""),
            (text(&server, "auth-provider: {name: x}"), "\"auth-provider\""),
            (text(&format!("server: 'http://x', certificate-authority-data: {ca}"), ""), "https://HOST"),
            (text(&format!("server: 'https://a:b@x', certificate-authority-data: {ca}"), ""), "login"),
            (text("server: 'https://x'", ""), "no certificate"),
            (text("server: 'https://x', certificate-authority-data: '***'", ""), "base64"),
            (text(&server, "client-certificate-data: eA==, client-key-data: eA=="), "no certificate"),
            ("current-context: y".to_owned(), "current-context"),
            ("[".to_owned(), "YAML"),
            ("x".repeat(TEXT_MAX + 1), "KiB"),
        ];
        for (text, wanted) in rows {
            let Err(reason) = read(text.as_bytes()) else { panic!("{wanted}: it was read") };
            assert!(reason.contains(wanted), "{reason}");
        }
        assert!(read(&[0xff]).is_err());
    }
}
