//! The kubeconfig of a cluster that was made, as its Secret has it.

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::Value;

use crate::api::bpa::Provisioning;
use crate::cli::client::ServerArgs;
use crate::cli::failure::plain;
use crate::cli::local;
use crate::cluster::workload::{plain_kubeconfig, secret_name};
use crate::log::is_safe;

/// Key of the kubeconfig in its Secret.
const VALUE: &str = "value";

/// Reads the kubeconfig of a cluster.
pub(super) fn kubeconfig(server: &ServerArgs, namespace: &str, cluster: &str) -> anyhow::Result<String> {
    local::block_on(async {
        let session = server.connect().await?;
        let secrets = Api::<Secret>::namespaced(session.client.clone(), namespace);
        let said = |error: kube::Error| match error {
            kube::Error::Api(status) => anyhow!("{}", status.message),
            error => anyhow!("{}", session.unreachable(&error)),
        };
        let mut name = secret_name(cluster);
        let mut found = secrets.get_opt(&name).await.map_err(said)?;
        if found.is_none()
            && let Some(of) = labelled(&session.client, namespace, cluster).await
        {
            name = secret_name(&of);
            found = secrets.get_opt(&name).await.map_err(said)?;
        }
        let secret = found.ok_or_else(|| {
            anyhow!("the cluster {cluster:?} has no kubeconfig yet: there is no Secret {name:?} in the namespace {namespace:?}")
        })?;
        text(secret).with_context(|| format!("the Secret {name:?} of {namespace:?}"))
    })
}

/// The one Provisioning that the label `cluster` gives this name to.
async fn labelled(client: &kube::Client, namespace: &str, cluster: &str) -> Option<String> {
    let is_value = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if !cluster.bytes().all(is_value) {
        return None;
    }
    let of_it = ListParams::default().labels(&format!("cluster={cluster}"));
    // Whoever may not list them, or has none, is told of the Secret.
    let found = Api::<Provisioning>::namespaced(client.clone(), namespace).list(&of_it).await.ok()?;
    match found.items.as_slice() {
        [one] => Some(one.name_any()),
        _ => None,
    }
}

/// What is in the Secret. Whoever may write it writes to no terminal, and has nothing run by who uses it.
fn text(mut secret: Secret) -> anyhow::Result<String> {
    let value =
        secret.data.as_mut().and_then(|data| data.remove(VALUE)).with_context(|| format!("it has no {VALUE:?}"))?;
    let text = plain_kubeconfig(&value.0).map_err(anyhow::Error::msg)?;
    if text.chars().all(|c| is_safe(c) || c == '\n') {
        return Ok(text);
    }
    // YAML leaves marks that turn the direction of text as they are. JSON is YAML, too, and escapes them to what is the same.
    let config: Value = serde_saphyr::from_str(&text)?;
    Ok(plain(&serde_json::to_string_pretty(&config)?) + "\n")
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use k8s_openapi::ByteString;

    use super::*;
    use crate::log::escaped;

    #[test]
    fn what_cannot_be_handed_on_is_refused() {
        let secret = |key: &str, value: &[u8]| Secret {
            data: Some([(key.to_owned(), ByteString(value.to_vec()))].into()),
            ..Secret::default()
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
        let kubeconfig = |context: &str, user: &str| {
            let context = escaped(&Value::from(context).to_string());
            format!(
                "current-context: {context}\ncontexts: [{{name: {context}, context: {{cluster: c, user: u}}}}]\n\
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
            let reason = text(secret).unwrap_err().to_string();
            assert!(reason.contains(wanted), "{reason}");
        }
        // Escaped, and the same to who reads it as a file.
        for name in ["x\u{1b}[2J", "\u{9b}x", "x\u{202e}y", "\u{2066}\u{200f}\u{feff}x\u{2028}", "x\r\ny"] {
            let text = text(secret(VALUE, kubeconfig(name, "token: t").as_bytes())).unwrap();
            assert!(text.ends_with('\n') && text.chars().all(|c| is_safe(c) || c == '\n'), "{name:?}: {text}");
            let read = kube::config::Kubeconfig::from_yaml(&text).unwrap();
            assert_eq!(read.current_context.as_deref(), Some(name), "{text}");
        }
    }
}
