//! SIGHUP: the configuration is read again. What may change in a running process changes; of the rest the log says that it takes a
//! restart. A file with a fault changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use tokio::sync::Mutex;
use toml::Value;
use tracing::{error, info, warn};

use super::checks;
use crate::apiserver::ApiServer;
use crate::config::Config;
use crate::log::LevelHandle;
use crate::modules::LiveSettings;

/// Keys, and sections whose every key, a running process takes.
const LIVE: [&str; 9] = [
    "log.level",
    "host.",
    "bmc.allow",
    "bmc.quirks",
    "image.allow",
    "cluster.allow",
    "api.event_lifetime",
    "api.admin_certificate",
    "api.webhooks.",
];

/// Reads the configuration again for a running appliance.
pub(super) struct Reload {
    path: PathBuf,
    /// None where the environment says the level.
    level: Option<LevelHandle>,
    live: LiveSettings,
    /// The embedded API server.
    api: Option<ApiServer>,
    /// What holds now. Held while the file is read, so that one reload follows another.
    in_force: Mutex<Settings>,
}

/// Every key that a file has, with its value as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settings(BTreeMap<String, String>);

/// A key that a new file has with another value.
#[derive(Debug, PartialEq, Eq)]
struct ChangedKey {
    key: String,
    /// None: the key was left out.
    before: Option<String>,
    after: Option<String>,
}

impl ChangedKey {
    fn is_live(&self) -> bool {
        LIVE.iter().any(|key| self.key == *key || key.ends_with('.') && self.key.starts_with(key))
    }
}

impl fmt::Display for ChangedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |value: &'_ Option<String>| value.clone().unwrap_or_else(|| "left out".to_owned());
        write!(f, "{}: {} -> {}", self.key, said(&self.before), said(&self.after))
    }
}

impl Settings {
    fn of(text: &str) -> Self {
        let mut settings = Self::default();
        // Whoever has a configuration has parsed this text.
        if let Ok(table) = text.parse::<toml::Table>() {
            settings.add("", &Value::Table(table));
        }
        settings
    }

    fn add(&mut self, at: &str, value: &Value) {
        let below = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        match value {
            Value::Table(table) => table.iter().for_each(|(key, value)| self.add(&below(key), value)),
            Value::Array(all) if !all.is_empty() && all.iter().all(Value::is_table) => {
                for (number, one) in all.iter().enumerate() {
                    // Networks go by name, reservations by network card, rules by their place.
                    let name = ["name", "mac"].iter().find_map(|key| one.get(key)?.as_str().map(str::to_owned));
                    self.add(&below(&name.unwrap_or_else(|| (number + 1).to_string())), one);
                }
            }
            value => {
                self.0.insert(at.to_owned(), value.to_string());
            }
        }
    }

    fn changes(&self, new: &Self) -> Vec<ChangedKey> {
        let mut keys: Vec<&String> = self.0.keys().chain(new.0.keys()).collect();
        keys.sort();
        keys.dedup();
        let change = |key: &String| ChangedKey {
            key: key.clone(),
            before: self.0.get(key).cloned(),
            after: new.0.get(key).cloned(),
        };
        keys.into_iter().map(change).filter(|change| change.before != change.after).collect()
    }

    fn apply(&mut self, change: &ChangedKey) {
        match &change.after {
            Some(value) => self.0.insert(change.key.clone(), value.clone()),
            None => self.0.remove(&change.key),
        };
    }
}

impl Reload {
    pub(super) fn new(config: &Config, level: Option<LevelHandle>, live: LiveSettings, api: Option<ApiServer>) -> Self {
        let in_force = Mutex::new(Settings::of(&config.text));
        Self { path: config.path.clone(), level, live, api, in_force }
    }

    /// Reads the file, applies what can be applied, and says in the log what became of it.
    pub(super) async fn run(&self) {
        let mut in_force = self.in_force.lock().await;
        let read = async {
            let (config, others) = checks::load(&self.path).await.map_err(|error| error.to_string())?;
            let new = LiveSettings::of(&config).map_err(|error| error.to_string())?;
            Ok::<_, String>((config, new, others))
        };
        let (config, new, others) = match read.await {
            Ok(read) => read,
            Err(reason) => {
                error!(%reason, "the configuration is not reloaded: everything stays as it is");
                return;
            }
        };
        others.iter().for_each(|fault| error!(fault = %fault.text, "what the configuration names has a fault"));
        let changes = in_force.changes(&Settings::of(&config.text));
        let (live, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(ChangedKey::is_live);
        // First, for the lines about the rest are logged by it.
        if let Some(Err(error)) = self.level.as_ref().map(|level| level.set(&config.log.level)) {
            error!(%error, "cannot set the level of the log");
        }
        let profiles = self.apply(&config, &new);
        for change in &live {
            if change.key == "log.level" && self.level.is_none() {
                info!(%change, "a setting was changed, and SLIPWAY_LOG in the environment goes before it");
            } else {
                info!(%change, "a setting was changed, and holds from now on");
            }
            in_force.apply(change);
        }
        if profiles {
            let file = config.bmc.quirks.as_deref().unwrap_or("the binary".as_ref()).display();
            info!(%file, "BMC quirk profiles hold from now on");
        }
        others.iter().for_each(|change| warn!(%change, "a setting was changed, and needs a restart"));
        info!(applied = live.len(), deferred = others.len(), "the configuration was read again");
    }

    /// Whether the profiles of BMCs are others than before.
    fn apply(&self, config: &Config, new: &LiveSettings) -> bool {
        let live = &self.live;
        live.host.set(new.host.get());
        live.bmc_allow.set(new.bmc_allow.get());
        live.image_allow.set(new.image_allow.get());
        live.cluster_allow.set(new.cluster_allow.get());
        live.webhooks.set(new.webhooks.get());
        if let Some(api) = &self.api {
            api.keep_events(config.api.event_lifetime.0);
        }
        // The same ones are not set anew: each BMC would be identified again.
        let profiles = new.quirks.get();
        let others = *live.quirks.get() != *profiles;
        if others {
            live.quirks.set(profiles);
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_named_and_whether_it_holds() {
        let changes = |before: &str, after: &str| -> Vec<String> {
            let changes = Settings::of(before).changes(&Settings::of(after));
            changes
                .iter()
                .map(|change| format!("{change} {}", if change.is_live() { "now" } else { "restart" }))
                .collect()
        };
        let network = "[[network]]\nname = 'rack'\npool = ['10.0.0.1-10.0.0.9']\n[[network.reservation]]\nmac = '52:54:00:00:00:01'\naddress = '10.0.0.5'\n";
        for (before, after, wanted) in [
            ("", "", &[][..]),
            ("[log]\nlevel = 'info'", "# a remark\n[log]\nlevel = \"info\"", &[]),
            ("[log]\nlevel = 'info'", "[log]\nlevel = 'debug'", &["log.level: \"info\" -> \"debug\" now"]),
            ("[log]\nformat = 'text'", "", &["log.format: \"text\" -> left out restart"]),
            ("", "[host]\nbusy_limit = 7", &["host.busy_limit: left out -> 7 now"]),
            ("[bmc]\nallow = []", "[bmc]\nallow = ['10.0.0.1']", &["bmc.allow: [] -> [\"10.0.0.1\"] now"]),
            ("data_dir = '/a'", "data_dir = '/b'", &["data_dir: \"/a\" -> \"/b\" restart"]),
            (
                network,
                &network.replace("0.9", "0.8"),
                &["network.rack.pool: [\"10.0.0.1-10.0.0.9\"] -> [\"10.0.0.1-10.0.0.8\"] restart"],
            ),
            (
                network,
                &network.replace("0.5", "0.6"),
                &["network.rack.reservation.52:54:00:00:00:01.address: \"10.0.0.5\" -> \"10.0.0.6\" restart"],
            ),
            ("[[discovery.rule]]\naccept = true", "", &["discovery.rule.1.accept: true -> left out restart"]),
            // No section of another name is taken for a live one.
            ("", "[hosts]\na = 1", &["hosts.a: left out -> 1 restart"]),
        ] {
            assert_eq!(changes(before, after), wanted, "{after}");
        }
    }

    #[test]
    fn what_needs_a_restart_is_told_again_and_what_was_applied_is_not() {
        let mut in_force = Settings::of("[host]\nbusy_limit = 1\n[dhcp]\nport = 67\n[bmc]\nquirks = '/q'");
        let new = Settings::of("[host]\nbusy_limit = 2\n[dhcp]\nport = 68");
        in_force.changes(&new).iter().filter(|change| change.is_live()).for_each(|change| in_force.apply(change));
        let left: Vec<String> = in_force.changes(&new).iter().map(ToString::to_string).collect();
        assert_eq!(left, ["dhcp.port: 67 -> 68"]);
    }
}
