//! The controller of claims that no template answers: theirs is not there, or not in their namespace.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::controller::Action;
use kube::{Api, Client};

use super::index::{self, DataIndex, template_of};
use super::templates::{DataWriter, RETRY};
use crate::api::infrastructure::data::v1beta2::{Metal3DataClaim, Metal3DataTemplate};
use crate::runtime::{Reconcile, Slim, key};

/// Tells claims why they wait, and lets those go that are deleted.
pub(super) struct StrayDataClaims {
    /// The API.
    pub client: Client,
    /// What is known of claims and data.
    pub index: DataIndex,
}

impl Reconcile for StrayDataClaims {
    type Object = Slim<Metal3DataClaim>;
    type Error = kube::Error;

    const NAME: &'static str = "metal3dataclaim";

    // All claims of a template that is gone are woken at once.
    const AT_ONCE: u16 = 32;
    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, claim: Arc<Slim<Metal3DataClaim>>) -> Result<Action, kube::Error> {
        let (namespace, name) = key(claim.as_ref());
        let claims = Api::<Metal3DataClaim>::namespaced(self.client.clone(), &namespace);
        let Some(object) = claims.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let (reason, data) = match template_of(&namespace, object.spec.template.as_ref()) {
            None => ("a claim names a Metal3DataTemplate of its own namespace".to_owned(), Vec::new()),
            Some(template) => {
                let templates = Api::<Metal3DataTemplate>::namespaced(self.client.clone(), &namespace);
                if templates.get_opt(&template.1).await?.is_some() {
                    return Ok(Action::await_change());
                }
                let Some((_, data)) = self.index.of(&template) else { return Ok(Action::requeue(RETRY)) };
                let its = data.into_iter().filter(|data| data.claim == name).map(|data| data.name);
                (format!("there is no Metal3DataTemplate {}", template.1), its.collect())
            }
        };
        let claim = index::claim(&object);
        let writer = DataWriter { client: &self.client, index: &self.index, namespace: &namespace };
        match (claim.deleted, claim.held) {
            (true, true) => {
                let mut names: Vec<String> = data;
                names.extend(claim.rendered.clone().filter(|name| !names.contains(name)));
                writer.release(&claim, &names).await?;
            }
            // Its data stays its own, whatever became of the template.
            (false, _) if claim.rendered.is_none() && data.is_empty() && claim.error.as_ref() != Some(&reason) => {
                writer.refuse(&claim, &reason).await?;
            }
            _ => {}
        }
        Ok(Action::await_change())
    }
}
