//! The kubeconfig of a cluster that was made, as its Secret has it.

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;

use crate::cli::client::Server;
use crate::cli::local;
use crate::cluster::workload::secret_name;

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

/// What is in the Secret. Whoever may write it writes to no terminal.
fn text(mut secret: Secret) -> anyhow::Result<String> {
    let value =
        secret.data.as_mut().and_then(|data| data.remove(VALUE)).with_context(|| format!("it has no {VALUE:?}"))?;
    let mut text = String::from_utf8(value.0).context("its kubeconfig is no text")?;
    if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        bail!("its kubeconfig has control characters");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn a_secret_that_has_no_kubeconfig_is_named() {
        let secret = |key: &str, value: &[u8]| Secret {
            data: Some([(key.to_owned(), ByteString(value.to_vec()))].into()),
            ..Secret::default()
        };
        assert_eq!(text(secret(VALUE, b"a: b")).unwrap(), "a: b\n");
        for (secret, wanted) in [
            (secret("other", b"x"), "\"value\""),
            (secret(VALUE, &[0xff]), "no text"),
            (secret(VALUE, b"a\x1b[2J"), "control characters"),
            (Secret::default(), "\"value\""),
        ] {
            let why = text(secret).unwrap_err().to_string();
            assert!(why.contains(wanted), "{why}");
        }
    }
}
