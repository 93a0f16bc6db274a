//! Variables for a run.
//!
//! Ansible evaluates every string that it uses as a [Jinja template](https://docs.ansible.com/ansible/latest/playbook_guide/playbooks_templating.html)
//! on the box that it runs on, where `lookup('pipe', …)` is a command; variables as `ansible_connection` and
//! `ansible_ssh_common_args` say what is run there; and kubespray copies files of that box whose paths are variables. So whoever
//! may set any variable has the appliance: they come from the configuration and from Slipway's own code, and from no object.

use serde_json::{Map, Value};

/// Most bytes of all variables.
const BYTES_MAX: usize = 1 << 20;

/// Variables for a run, and by whose right.
#[derive(Clone, Default)]
pub struct RunVars(Map<String, Value>);

/// They cannot be handed to Ansible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the variables of a run are longer than {} MiB", BYTES_MAX >> 20)]
pub struct VariablesTooLong;

impl RunVars {
    /// Variables of the configuration, or of Slipway's own code.
    ///
    /// # Errors
    ///
    /// When they are too long.
    pub fn of_administrator(vars: Map<String, Value>) -> Result<Self, VariablesTooLong> {
        let bytes = serde_json::to_vec(&vars).map_or(usize::MAX, |text| text.len());
        if bytes > BYTES_MAX { Err(VariablesTooLong) } else { Ok(Self(vars)) }
    }

    /// These, and others that go before them.
    #[must_use]
    pub fn with(mut self, others: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        self.0.extend(others.into_iter().map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// These, where `others` does not say otherwise.
    #[must_use]
    pub fn below(mut self, others: &Self) -> Self {
        self.0.extend(others.0.clone());
        self
    }

    /// As Ansible reads them.
    pub(super) fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_refused_and_not_left_out() {
        let of = |length| RunVars::of_administrator(Map::from_iter([("a".to_owned(), "x".repeat(length).into())]));
        assert!(of(100).is_ok());
        assert_eq!(of(BYTES_MAX).err(), Some(VariablesTooLong));
    }
}
