//! `[api.webhooks]`: where the API server may ask others before it writes.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;

use crate::outbound::Allowed;

/// `[api.webhooks]`
#[derive(Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct WebhooksConfig {
    /// Addresses and networks that webhooks may be at which a URL names. Empty: none is called.
    pub allow: Vec<Allowed>,
    /// Where the services are that webhooks name, by `NAMESPACE/NAME` or `NAMESPACE/NAME:PORT`.
    pub services: BTreeMap<String, WebhookAddress>,
}

/// `HOST:PORT`
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct WebhookAddress {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl WebhooksConfig {
    /// Where a service is; its port counts where one is named.
    pub fn service(&self, namespace: &str, name: &str, port: u16) -> Option<&WebhookAddress> {
        let plain = format!("{namespace}/{name}");
        self.services.get(&format!("{plain}:{port}")).or_else(|| self.services.get(&plain))
    }

    /// What is wrong with it, one line for each fault.
    pub(super) fn faults(&self) -> Vec<String> {
        let is_label = |part: &str| {
            let dashes = part.starts_with('-') || part.ends_with('-');
            let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            (1..=63).contains(&part.len()) && !dashes && part.bytes().all(letters)
        };
        let is_service = |key: &str| {
            let Some((namespace, rest)) = key.split_once('/') else { return false };
            let (name, port) = rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)));
            is_label(namespace)
                && is_label(name)
                && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
        };
        let odd = self.services.keys().filter(|key| !is_service(key));
        odd.map(|key| {
            format!("api.webhooks.services: {key:?} is no service: write \"NAMESPACE/NAME\" or \"NAMESPACE/NAME:PORT\"")
        })
        .collect()
    }
}

impl FromStr for WebhookAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fault = || format!("{text:?} is no address of a webhook: write HOST:PORT, as in 172.22.0.9:9443");
        let (host, port) = text.trim().rsplit_once(':').ok_or_else(fault)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(fault)?;
        let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if !crate::pki::is_name(plain) {
            return Err(fault());
        }
        Ok(Self { host: plain.to_owned(), port })
    }
}

impl TryFrom<String> for WebhookAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn parsed(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("slipway.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn services_are_found_by_port_and_without() {
        let text = "[api.webhooks]\nallow = [\"10.0.0.0/24\"]\n[api.webhooks.services]\n\"a/b\" = \"host.example:9443\"\n\
                    \"a/b:8443\" = \"[2001:db8::1]:1\"";
        let hooks = parsed(text).unwrap().api.webhooks;
        let found = |port| hooks.service("a", "b", port).map(|one| (one.host.as_str(), one.port));
        assert_eq!(found(443), Some(("host.example", 9443)));
        assert_eq!(found(8443), Some(("2001:db8::1", 1)));
        assert_eq!(hooks.service("a", "c", 443), None);
    }

    #[test]
    fn what_is_no_service_or_no_address_is_refused() {
        for line in [
            "\"a\" = \"b:1\"",
            "\"a/B\" = \"b:1\"",
            "\"a/b:0\" = \"b:1\"",
            "\"a/b\" = \"b\"",
            "\"a/b\" = \"b:0\"",
            "\"a/b\" = \"https://b:1\"",
        ] {
            let fault = parsed(&format!("[api.webhooks.services]\n{line}")).unwrap_err();
            assert!(fault.contains("write"), "{line}: {fault}");
        }
    }
}
