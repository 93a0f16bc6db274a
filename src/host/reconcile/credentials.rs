//! BMC access: address and credentials of a host (docs/design/host.md, "Access to the BMC").

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};
use secrecy::SecretString;
use serde_json::json;

use super::context::HostContext;
use crate::api::metal3::{ANNOTATION_PAUSED, BareMetalHost, FINALIZER_SECRET};
use crate::apiserver::subdomain;
use crate::bmc::{BmcAddress, Credentials};
use crate::host::lifecycle::{Access, SecretName};
use crate::runtime::objects::{self, ControllerMarks};

/// Secrets that are looked at in one go.
/// Label that Metal3 puts on every secret that it reads.
const SECRET_LABEL: (&str, &str) = ("environment.metal3.io", "baremetal");

/// Secrets that are looked at at once.
const PART: u32 = 250;

/// Whether the host's BMC can be tried, without trying it.
pub(in crate::host) async fn read(context: &HostContext, host: &BareMetalHost) -> Result<Access, kube::Error> {
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
    if let Some(owner) = context.conflicts.bmc_owner(host, &address) {
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
    let secret = if host.metadata.deletion_timestamp.is_none() {
        match claim(context, host, secret).await {
            // It will not change its mind by itself, and the operator must see why.
            Err(kube::Error::Api(error)) if matches!(error.code, 400 | 403 | 413 | 422 | 507) => {
                let reason =
                    format!("secret {} cannot be marked as the host's: {}", bmc.credentials_name, error.message);
                return Ok(Access::Broken(reason));
            }
            claimed => claimed?,
        }
    } else {
        secret
    };
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
async fn claim(context: &HostContext, host: &BareMetalHost, secret: Secret) -> Result<Secret, kube::Error> {
    let Some(owner) = host.owner_ref(&()) else { return Ok(secret) };
    let labelled = secret.labels().get(SECRET_LABEL.0).is_some_and(|value| value == SECRET_LABEL.1);
    let owned = secret.owner_references().iter().any(|other| other.uid == owner.uid);
    let held = objects::is_held(&secret, FINALIZER_SECRET);
    let paused = host.annotations().contains_key(ANNOTATION_PAUSED);
    if (labelled && owned && held) || paused || secret.metadata.deletion_timestamp.is_some() {
        return Ok(secret);
    }
    let owners = (!owned).then(|| secret.owner_references().iter().cloned().chain([owner]).collect());
    let namespace = host.namespace().unwrap_or_default();
    let marks = ControllerMarks { finalizer: Some(FINALIZER_SECRET), labels: &[SECRET_LABEL], owners };
    objects::mark(&context.api::<Secret>(&namespace), secret, &marks).await
}

/// The other way round: the host goes, and with it its claim on every secret it ever used. The last host that lets go
/// of a secret takes the finalizer off.
pub(in crate::host) async fn release(context: &HostContext, host: &BareMetalHost) -> Result<(), kube::Error> {
    let uid = host.uid().unwrap_or_default();
    release_of(context, &host.namespace().unwrap_or_default(), |owner| owner.uid == uid).await
}

/// The same for a host that went without letting go.
pub(in crate::host) async fn release_gone(
    context: &HostContext,
    namespace: &str,
    name: &str,
) -> Result<(), kube::Error> {
    let there = context.api::<BareMetalHost>(namespace).get_opt(name).await?.and_then(|host| host.uid());
    let gone = |owner: &OwnerReference| {
        owner.kind == "BareMetalHost" && owner.name == name && Some(&owner.uid) != there.as_ref()
    };
    release_of(context, namespace, gone).await
}

async fn release_of(
    context: &HostContext,
    namespace: &str,
    is_its: impl Fn(&OwnerReference) -> bool,
) -> Result<(), kube::Error> {
    let api = context.api::<PartialObjectMeta<Secret>>(namespace);
    let marked = format!("{}={}", SECRET_LABEL.0, SECRET_LABEL.1);
    let mut params = ListParams::default().labels(&marked).limit(PART);
    // Anybody may have many large ones with this label: nothing of their contents is read, and one host at a time looks.
    let _turn = context.releasing.lock().await;
    loop {
        let part = context.api::<Secret>(namespace).list_metadata(&params).await?;
        for secret in &part.items {
            let (ours, others): (Vec<_>, Vec<_>) = secret.owner_references().iter().partition(|owner| is_its(owner));
            if ours.is_empty() {
                continue;
            }
            let shared = others.iter().any(|owner| owner.kind == "BareMetalHost");
            if !shared {
                objects::release(&api, secret, FINALIZER_SECRET).await?;
                continue;
            }
            let metadata = json!({ "resourceVersion": secret.resource_version(), "ownerReferences": others });
            let patch = Patch::Merge(json!({ "metadata": metadata }));
            api.patch(&secret.name_any(), &PatchParams::default(), &patch).await?;
        }
        match part.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
