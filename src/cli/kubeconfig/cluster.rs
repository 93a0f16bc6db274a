//! The kubeconfig of a cluster that was made, as its Secret has it.

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;

use crate::cli::client::Server;
use crate::cli::local;
use crate::cluster::workload::{plain_kubeconfig, secret_name};

/// Key of the kubeconfig in its Secret.
const VALUE: &str = "value";

/// Reads the kubeconfig of a cluster.
pub(super) fn kubeconfig(server: &Server, namespace: &str, cluster: &str) -> anyhow::Result<String> {
    local::block_on(async {
        let session = server.connect().await?;
        let name = secret_name(cluster);
        let secrets = Api::<Secret>::namespaced(session.client.clone(), namespace);
        match secrets.get_opt(&name).await {
            Ok(Some(secret)) => text(secret).with_context(|| format!("the Secret {name:?} of {namespace:?}")),
            Ok(None) => bail!(
                "the cluster {cluster:?} has no kubeconfig yet: there is no Secret {name:?} in the namespace {namespace:?}"
            ),
            Err(kube::Error::Api(status)) => bail!("{}", status.message),
            Err(error) => bail!("{}", session.unreachable(&error)),
        }
    })
}

/// What is in the Secret. Whoever may write it writes to no terminal, and has nothing run by who uses it.
fn text(mut secret: Secret) -> anyhow::Result<String> {
    let value =
        secret.data.as_mut().and_then(|data| data.remove(VALUE)).with_context(|| format!("it has no {VALUE:?}"))?;
    let text = plain_kubeconfig(&value.0).map_err(anyhow::Error::msg)?;
    if text.chars().any(|c| c.is_control() && c != '\n') {
        bail!("its kubeconfig has control characters");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn what_cannot_be_handed_on_is_refused() {
        let secret = |key: &str, value: &[u8]| Secret {
            data: Some([(key.to_owned(), ByteString(value.to_vec()))].into()),
            ..Secret::default()
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
        let kubeconfig = |context: &str, user: &str| {
            format!(
                "current-context: {context:?}\ncontexts: [{{name: {context:?}, context: {{cluster: c, user: u}}}}]\n\
                 clusters: [{{name: c, cluster: {{server: 'https://192.0.2.1', certificate-authority-data: {}}}}}]\n\
                 users: [{{name: u, user: {{{user}}}}}]\n",
                STANDARD.encode(authority.pem())
            )
        };
        let plain = text(secret(VALUE, kubeconfig("x", "token: t").as_bytes())).unwrap();
        assert!(plain.contains("https://192.0.2.1") && plain.ends_with('\n'), "{plain}");
        for (secret, wanted) in [
            (secret("other", b"x"), "\"value\""),
            (secret(VALUE, &[0xff]), "no text"),
            (secret(VALUE, b"a: b"), "current-context"),
            (secret(VALUE, kubeconfig("x", "exec: {command: sh}").as_bytes()), "\"exec\""),
            (Secret::default(), "\"value\""),
        ] {
            let why = text(secret).unwrap_err().to_string();
            assert!(why.contains(wanted), "{why}");
        }
        // Escaped, or refused.
        let text = text(secret(VALUE, kubeconfig("x\u{1b}[2J", "token: t").as_bytes()));
        assert!(text.is_err() || !text.unwrap().contains('\x1b'));
    }
}
