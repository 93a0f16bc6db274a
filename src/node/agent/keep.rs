//! What is kept as it is to be: SSH keys, and the token.

use std::time::Duration;

use tokio::time::sleep;

use super::Agent;
use crate::node::config::AgentPauses;
use crate::node::effect::NodeEffect;
use crate::node::{keys, token};

/// Between two looks whether the token is to be renewed.
const TOKEN_LOOK: Duration = Duration::from_secs(600);

impl Agent {
    /// Keeps the keys of root, and of the user who is named.
    pub(super) async fn keep_keys(&self) {
        let mut wanted = self.wanted.subscribe();
        loop {
            self.look_at_keys();
            let pause = Duration::from_millis(self.config.pauses.heartbeat);
            tokio::time::timeout(pause, wanted.changed()).await.ok();
        }
    }

    pub(super) fn look_at_keys(&self) {
        if self.is_gone.get() {
            return;
        }
        let (wanted, before) = {
            let journal = self.journal.borrow();
            let Some(machine) = &journal.machine else { return };
            (keys::usable(&machine.spec.ssh_authorized_keys), journal.records.keys.clone())
        };
        let mut trouble = String::new();
        for user in ["root", self.config.ssh_user.as_str()].into_iter().filter(|user| !user.is_empty()) {
            match keys::keep(&self.config.root, user, &wanted, &before) {
                Ok(true) => {
                    self.journal.borrow().tell(NodeEffect::KeysWritten);
                    tracing::info!(user, keys = wanted.len(), "authorized_keys written");
                }
                Ok(false) => {}
                Err(error) => trouble = format!("authorized_keys of {user}: {error}"),
            }
        }
        if !trouble.is_empty() && *self.key_trouble.borrow() != trouble {
            tracing::error!(trouble, "keys are not as they are to be");
        }
        let is_well = trouble.is_empty();
        *self.key_trouble.borrow_mut() = trouble;
        if is_well && wanted != before {
            // What is not noted is only wanted where the marks are damaged.
            self.journal.borrow_mut().after(|records| records.keys = wanted).ok();
        }
    }

    /// Renews the token in time.
    pub(super) async fn keep_token(&self) {
        let mut tries = 0;
        loop {
            let token = self.client.token().ok();
            let claims = token.as_deref().and_then(|token| token::claims(token));
            let due = claims.filter(|claims| self.clock.is_told() && token::is_due(claims, self.now()));
            let pauses = &self.config.pauses;
            let pause = match due {
                None if self.clock.is_told() => TOKEN_LOOK,
                None => Duration::from_millis(pauses.call_least),
                Some(claims) => match token::renew(&self.client, &self.config, &claims).await {
                    Ok(()) => {
                        self.journal.borrow().tell(NodeEffect::TokenWritten);
                        tracing::info!("the token is renewed");
                        tries = 0;
                        TOKEN_LOOK
                    }
                    Err(error) => {
                        tries += 1;
                        tracing::warn!(%error, "the token is not renewed yet");
                        AgentPauses::after(pauses.call_least, pauses.call_most, tries)
                    }
                },
            };
            sleep(pause).await;
        }
    }
}
