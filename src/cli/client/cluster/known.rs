//! A cluster and all that may belong to it, as the server has it.

use std::time::Duration;

use anyhow::{Context, bail};
use futures::stream::{SelectAll, StreamExt};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::tree;
use crate::cli::client::connect::{ClientSession, ServerArgs};
use crate::cli::client::errors::ApiRequestError;
use crate::cli::client::request;
use crate::cli::client::types::{ServedType, ServedTypes};

/// Kinds of which a cluster consists.
const KINDS: [(&str, &str); 11] = [
    ("cluster.x-k8s.io", "Cluster"),
    ("cluster.x-k8s.io", "Machine"),
    ("cluster.x-k8s.io", "MachineSet"),
    ("cluster.x-k8s.io", "MachineDeployment"),
    ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"),
    ("bootstrap.cluster.x-k8s.io", "KubeadmConfig"),
    ("infrastructure.cluster.x-k8s.io", "Metal3Cluster"),
    ("infrastructure.cluster.x-k8s.io", "Metal3Machine"),
    ("infrastructure.cluster.x-k8s.io", "Metal3MachineTemplate"),
    ("metal3.io", "BareMetalHost"),
    ("slipway.dev", "Image"),
];

/// The type of a kind as the server prefers it.
pub(super) fn type_of<'t>(types: &'t ServedTypes, kind: &str) -> anyhow::Result<&'t ServedType> {
    let group = KINDS.iter().find(|(_, one)| *one == kind).map_or("bootstrap.cluster.x-k8s.io", |(group, _)| group);
    // Both versions may be served; the patches here are of the newer.
    let mut found: Vec<&ServedType> = types.listed().filter(|of| of.group == group && of.kind == kind).collect();
    found.sort_by(|one, other| other.version.cmp(&one.version));
    found
        .first()
        .copied()
        .with_context(|| format!("the server has no {kind} of {group}: is it a Slipway of this version?"))
}

/// Whether a cluster of kubespray has this name.
async fn is_provisioning(session: &ClientSession, types: &ServedTypes, name: &str) -> anyhow::Result<bool> {
    let of = types.listed().find(|of| of.group == "bpa.akraino.org" && of.kind == "Provisioning");
    Ok(match of {
        Some(of) => find(session, of, name).await?.is_some(),
        None => false,
    })
}

pub(super) async fn find(session: &ClientSession, of: &ServedType, name: &str) -> anyhow::Result<Option<Value>> {
    match session.get(&of.path(Some(&session.namespace), Some(name)), &[], request::JSON).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A cluster and everything of its namespace that may belong to it.
pub(super) struct KnownCluster {
    pub types: ServedTypes,
    pub cluster: Value,
    pub all: Vec<Value>,
    /// Of which revision the list of each kind is; none of one that the caller may not read.
    revisions: Vec<Option<String>>,
}

impl KnownCluster {
    pub(super) async fn of(server: &ServerArgs, name: &str) -> anyhow::Result<(ClientSession, Self)> {
        let session = server.connect().await?;
        let types = session.types().await?;
        let known = Self::read(&session, &types, name).await?;
        Ok((session, known))
    }

    pub(super) async fn read(session: &ClientSession, types: &ServedTypes, name: &str) -> anyhow::Result<Self> {
        let mut known = Self::unread(types, name);
        if !known.again(session).await? {
            if is_provisioning(session, types, name).await? {
                bail!(
                    "{name} is a cluster of kubespray, a Provisioning: `slipway describe provisioning {name}` says how it is, `slipway \
                     cluster log {name}` what Ansible said; its spec says how many nodes it has"
                );
            }
            bail!(
                "there is no cluster {name:?} in namespace {}: see `slipway cluster status`, or `slipway get clusters -A` for all namespaces",
                session.namespace
            );
        }
        Ok(known)
    }

    /// A cluster of this name, of which nothing is known yet.
    pub(super) fn unread(types: &ServedTypes, name: &str) -> Self {
        let cluster = json!({"metadata": {"name": name}});
        Self { types: types.clone(), cluster, all: Vec::new(), revisions: Vec::new() }
    }

    /// Reads everything anew; whether the cluster is still there.
    pub(super) async fn again(&mut self, session: &ClientSession) -> anyhow::Result<bool> {
        let name = tree::name(&self.cluster).to_owned();
        let (mut all, mut revisions) = (Vec::new(), Vec::new());
        for (_, kind) in KINDS.iter().filter(|(_, kind)| *kind != "Image") {
            let of = type_of(&self.types, kind)?;
            let each = |page: Value| {
                let items = page["items"].as_array().cloned().unwrap_or_default();
                all.extend(items.into_iter().map(|mut item| {
                    // Lists leave out what their items are.
                    item["kind"] = (*kind).into();
                    item["apiVersion"] = of.api_version().into();
                    item
                }));
                Ok(())
            };
            let path = of.path(Some(&session.namespace), None);
            match session.pages(&path, &[], request::JSON, each).await {
                Ok(revision) => revisions.push(Some(revision)),
                // It has the tokens by which machines join: who may only look has a tree without it.
                Err(error) if *kind == "KubeadmConfig" && is_forbidden(&error) => revisions.push(None),
                Err(error) => return Err(error),
            }
        }
        (self.all, self.revisions) = (all, revisions);
        let found = self.all.iter().find(|object| object["kind"] == "Cluster" && tree::name(object) == name);
        Ok(found.cloned().map(|cluster| self.cluster = cluster).is_some())
    }
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ApiRequestError>().is_some_and(ApiRequestError::is_forbidden)
}

/// Waits until anything of a cluster's kinds changed since it was read. Not longer than a while: a watch may have ended without a
/// word.
pub(super) async fn next_change(
    session: &ClientSession,
    known: &KnownCluster,
    deadline: Instant,
) -> anyhow::Result<()> {
    let mut changes = SelectAll::new();
    let kinds = KINDS.iter().filter(|(_, kind)| *kind != "Image");
    for ((_, kind), revision) in kinds.zip(&known.revisions) {
        let Some(revision) = revision else { continue };
        let path = type_of(&known.types, kind)?.path(Some(&session.namespace), None);
        match session.watch(&path, &[("resourceVersion", revision)], request::METADATA).await {
            Ok(events) => changes.push(Box::pin(events)),
            // Too long ago: it is read anew.
            Err(error) if error.is_expired() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    let first = async {
        while let Some(event) = changes.next().await {
            match event {
                Ok(event) if event["type"] == "BOOKMARK" => {}
                Ok(_) | Err(ApiRequestError::Refused(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    };
    let until = deadline.min(Instant::now() + WATCH);
    timeout_at(until, first).await.unwrap_or(Ok(()))
}

/// How long a change is waited for before everything is read anew.
pub(super) const WATCH: Duration = Duration::from_secs(5);
