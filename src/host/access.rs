//! BMC address and credentials of a host (docs/design/host.md, "Access to the BMC").

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use secrecy::SecretString;
use serde_json::json;

use super::context::Context;
use super::machine::{Access, SecretName};
use crate::api::metal3::{ANNOTATION_PAUSED, BareMetalHost, FINALIZER_SECRET};
use crate::apiserver::subdomain;
use crate::bmc::{BmcAddress, Credentials};
use crate::runtime::objects;

/// Secrets that are looked at in one go.
const PAGE: u32 = 100;
/// Label that Metal3 puts on every secret that it reads.
const SECRET_LABEL: (&str, &str) = ("environment.metal3.io", "baremetal");

/// Whether the host's BMC can be tried, without trying it.
pub(super) async fn read(context: &Context, host: &BareMetalHost) -> Result<Access, kube::Error> {
    let Some(bmc) = host.spec.bmc.as_ref().filter(|b| !b.address.is_empty() || !b.credentials_name.is_empty()) else {
        return Ok(Access::None);
    };
    if bmc.address.is_empty() {
        return Ok(Access::Broken("spec.bmc.address is missing".into()));
    }
    let address = match BmcAddress::parse(&bmc.address) {
        Ok(address) => address,
        Err(error) => {
            context.metrics.credentials_invalid();
            return Ok(Access::Broken(error.to_string()));
        }
    };
    if let Some(owner) = context.crowd.bmc_owner(host, &address) {
        // Two hosts would switch one machine on and off in turns.
        let reason = format!("BMC address {} is already that of {owner}: correct one of the two", bmc.address);
        return Ok(Access::Taken(reason));
    }
    if bmc.credentials_name.is_empty() {
        return Ok(Access::Broken("spec.bmc.credentialsName is missing".into()));
    }
    if !subdomain(&bmc.credentials_name).is_empty() {
        // It becomes part of a path, and the API server may have let anything through.
        return Ok(Access::Broken("spec.bmc.credentialsName is no name that a Secret can have".into()));
    }
    let namespace = host.namespace().unwrap_or_default();
    let Some(secret) = context.api::<Secret>(&namespace).get_opt(&bmc.credentials_name).await? else {
        context.metrics.credentials_missing();
        let reason =
            format!("there is no secret {} in namespace {namespace} with the BMC's credentials", bmc.credentials_name);
        return Ok(Access::Broken(reason));
    };
    if let Err(reason) = credentials(&secret) {
        context.metrics.credentials_invalid();
        return Ok(Access::Broken(format!("secret {}: {reason}", bmc.credentials_name)));
    }
    // Our own marks change the resourceVersion, so they come before the version is looked at.
    let secret = if host.metadata.deletion_timestamp.is_none() { claim(context, host, secret).await? } else { secret };
    let name = SecretName { namespace, name: bmc.credentials_name.clone() };
    Ok(Access::Ready { secret: name, version: secret.resource_version().unwrap_or_default() })
}

/// User and password in a secret: trimmed, neither empty.
pub(crate) fn credentials(secret: &Secret) -> Result<Credentials, String> {
    let value = |key: &str| -> Result<String, String> {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key)).ok_or(format!("{key} is missing"))?;
        let text = std::str::from_utf8(&bytes.0).map_err(|_| format!("{key} is not UTF-8 text"))?.trim();
        if text.is_empty() { Err(format!("{key} is empty")) } else { Ok(text.to_owned()) }
    };
    Ok(Credentials { username: value("username")?, password: SecretString::from(value("password")?) })
}

/// Label, owner reference and finalizer, so that the secret lives as long as its host.
async fn claim(context: &Context, host: &BareMetalHost, secret: Secret) -> Result<Secret, kube::Error> {
    let Some(owner) = host.owner_ref(&()) else { return Ok(secret) };
    let labelled = secret.labels().get(SECRET_LABEL.0).is_some_and(|value| value == SECRET_LABEL.1);
    let owned = secret.owner_references().iter().any(|other| other.uid == owner.uid);
    let held = secret.finalizers().iter().any(|finalizer| finalizer == FINALIZER_SECRET);
    let paused = host.annotations().contains_key(ANNOTATION_PAUSED);
    if (labelled && owned && held) || paused || secret.metadata.deletion_timestamp.is_some() {
        return Ok(secret);
    }
    let mut owners = secret.owner_references().to_vec();
    if !owned {
        owners.push(owner);
    }
    let finalizers = objects::with(&secret, FINALIZER_SECRET);
    let (label, value) = SECRET_LABEL;
    let patch = json!({ "metadata": {
        "resourceVersion": secret.resource_version(),
        "labels": { label: value },
        "ownerReferences": owners,
        "finalizers": finalizers,
    }});
    let namespace = host.namespace().unwrap_or_default();
    let api = context.api::<Secret>(&namespace);
    api.patch(&secret.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}

/// The other way round: the host goes, and with it its claim on every secret it ever used. The last host that lets go
/// of a secret takes the finalizer off.
pub(super) async fn release(context: &Context, host: &BareMetalHost) -> Result<(), kube::Error> {
    let namespace = host.namespace().unwrap_or_default();
    let uid = host.uid().unwrap_or_default();
    let api = context.api::<Secret>(&namespace);
    let label = format!("{}={}", SECRET_LABEL.0, SECRET_LABEL.1);
    let mut page = ListParams::default().labels(&label).limit(PAGE);
    loop {
        // Without what is in them: a namespace may have many, and each of its hosts looks for its own.
        let some = api.list_metadata(&page).await?;
        let owned = some.items.iter().filter(|secret| secret.owner_references().iter().any(|owner| owner.uid == uid));
        for name in owned.map(ResourceExt::name_any) {
            if let Some(secret) = api.get_opt(&name).await? {
                let_go(&api, secret, &uid).await?;
            }
        }
        match some.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Takes the claim of the host with this UID off a secret.
async fn let_go(api: &Api<Secret>, secret: Secret, uid: &str) -> Result<(), kube::Error> {
    let (ours, others): (Vec<_>, Vec<_>) = secret.owner_references().iter().partition(|owner| owner.uid == uid);
    if ours.is_empty() {
        return Ok(());
    }
    let shared = others.iter().any(|owner| owner.kind == "BareMetalHost");
    if !shared {
        return objects::release(api, &secret, FINALIZER_SECRET).await;
    }
    let metadata = json!({ "resourceVersion": secret.resource_version(), "ownerReferences": others });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    api.patch(&secret.name_any(), &PatchParams::default(), &patch).await.map(drop)
}
