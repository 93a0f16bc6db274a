//! kubeconfigs with everything embedded.

use base64::Engine;
use serde_json::json;

use super::Credential;

fn data(pem: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(pem)
}

/// A kubeconfig with everything embedded, for the bearer of a certificate.
pub fn kubeconfig(endpoint: &str, ca_pem: &str, user: &str, credential: &Credential) -> String {
    let (certificate, key) = (data(&credential.certificate), data(&credential.key));
    let proof = format!("    client-certificate-data: {certificate}\n    client-key-data: {key}\n");
    render_kubeconfig(endpoint, ca_pem, user, &proof)
}

/// A kubeconfig with everything embedded, for the bearer of a token.
pub fn token_kubeconfig(endpoint: &str, ca_pem: &str, user: &str, token: &str) -> String {
    render_kubeconfig(endpoint, ca_pem, user, &format!("    token: {}\n", json!(token)))
}

/// JSON strings are YAML, so no text can break out of its place.
fn render_kubeconfig(endpoint: &str, ca_pem: &str, user: &str, proof: &str) -> String {
    let text = |text: &str| json!(text).to_string();
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: slipway\n  \
           cluster:\n    \
             server: {endpoint}\n    \
             certificate-authority-data: {ca}\n\
         users:\n\
         - name: {user}\n  \
           user:\n\
         {proof}\
         contexts:\n\
         - name: slipway\n  \
           context:\n    \
             cluster: slipway\n    \
             user: {user}\n\
         current-context: slipway\n",
        endpoint = text(endpoint),
        ca = data(ca_pem),
        user = text(user),
    )
}
