//! Which networks are in force: those of the configuration, then those of the API, the oldest first, but none in the way of
//! another whose interface is not there. Pure.
//!
//! One that cannot be is left out with its reason, and changes nothing of the others.

use std::collections::HashMap;

use crate::config::NetworkConfig;

/// Networks of the API that are in force at most: each is a place to listen at, and an address in the API server's certificate.
pub const MOST: usize = 256;

/// A network as somebody wants it.
#[derive(Clone, Debug)]
pub struct WantedNetwork {
    /// Name of its object, and its own.
    pub name: String,
    /// When that was created, Unix time in seconds.
    pub created: i64,
    /// Whether its interface is there.
    pub present: bool,
    /// What it says, or in what it contradicts itself.
    pub config: Result<NetworkConfig, String>,
}

/// What comes of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkVerdict {
    /// It is in force.
    InForce,
    /// It cannot be, for this reason.
    Fault {
        /// In one word, as conditions have it.
        reason: &'static str,
        /// For people.
        message: String,
    },
}

/// A network that is in force.
#[derive(Clone, Debug)]
pub struct NetworkJudgement {
    /// The network.
    pub config: NetworkConfig,
    /// Whether it is of the configuration.
    pub of_file: bool,
}

/// What is in force.
#[derive(Debug, Default)]
pub struct EffectiveNetworks {
    /// The networks.
    pub in_force: Vec<NetworkJudgement>,
    /// What comes of each object.
    pub verdicts: HashMap<String, NetworkVerdict>,
}

/// Judges what is wanted beside the networks of the configuration.
pub fn judge(file: &[NetworkConfig], wanted: impl IntoIterator<Item = WantedNetwork>) -> EffectiveNetworks {
    let in_force = file.iter().map(|config| NetworkJudgement { config: config.clone(), of_file: true }).collect();
    let mut judged = EffectiveNetworks { in_force, verdicts: HashMap::new() };
    let mut wanted: Vec<_> = wanted.into_iter().collect();
    wanted.sort_by(|a, b| (!a.present, a.created, &a.name).cmp(&(!b.present, b.created, &b.name)));
    for WantedNetwork { name, present, config, .. } in wanted {
        let placed = config.map_err(|message| ("InvalidSpec", message)).and_then(|config| {
            fits(&judged.in_force, &config, present)?;
            Ok(config)
        });
        let verdict = match placed {
            Ok(config) => {
                judged.in_force.push(NetworkJudgement { config, of_file: false });
                NetworkVerdict::InForce
            }
            Err((reason, message)) => NetworkVerdict::Fault { reason, message },
        };
        judged.verdicts.insert(name, verdict);
    }
    judged
}

/// Why a network cannot be beside these.
fn fits(others: &[NetworkJudgement], config: &NetworkConfig, present: bool) -> Result<(), (&'static str, String)> {
    if others.iter().filter(|other| !other.of_file).count() >= MOST {
        let message =
            format!("{MOST} Networks of the API are in force, which are as many as there may be: delete some");
        return Err(("TooMany", message));
    }
    if others.iter().any(|other| other.config.name == config.name) {
        let message = format!(
            "slipway.toml has a [[network]] {:?}, and that one is in force: give this one another name",
            config.name
        );
        return Err(("NameTaken", message));
    }
    let Some(other) = others.iter().find(|other| other.config.subnet.overlaps(config.subnet)) else { return Ok(()) };
    let (whose, subnet) = (&other.config.name, other.config.subnet);
    let message = if other.of_file {
        format!("{} overlaps {subnet} of the [[network]] {whose:?} of slipway.toml, which is in force", config.subnet)
    } else if present {
        format!("{} overlaps {subnet} of the Network {whose}, which is older and in force", config.subnet)
    } else {
        let (own, interface) = (config.subnet, &config.interface);
        format!(
            "{own} overlaps {subnet} of the Network {whose}, which is in force as there is no interface {interface}"
        )
    };
    Err(("SubnetOverlap", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, subnet: &str) -> NetworkConfig {
        toml::from_str(&format!("name = '{name}'\ninterface = 'e0'\nsubnet = '{subnet}'")).unwrap()
    }

    fn wanted(name: &str, created: i64, subnet: &str) -> WantedNetwork {
        WantedNetwork { name: name.into(), created, present: true, config: Ok(config(name, subnet)) }
    }

    /// The reason, or nothing.
    fn verdict(judged: &EffectiveNetworks, name: &str) -> String {
        match &judged.verdicts[name] {
            NetworkVerdict::InForce => String::new(),
            NetworkVerdict::Fault { reason, message } => format!("{reason}: {message}"),
        }
    }

    fn in_force(judged: &EffectiveNetworks) -> Vec<&str> {
        judged.in_force.iter().map(|one| one.config.name.as_str()).collect()
    }

    #[test]
    fn what_cannot_be_is_left_out_with_its_reason() {
        let file = [config("a", "10.0.0.0/24"), config("b", "10.1.0.0/16")];
        for (name, subnet, wanted_verdict) in [
            ("x", "10.0.1.0/24", ""),
            ("a", "10.0.1.0/24", "NameTaken: slipway.toml has a [[network]] \"a\""),
            (
                "x",
                "10.0.0.128/25",
                "SubnetOverlap: 10.0.0.128/25 overlaps 10.0.0.0/24 of the [[network]] \"a\" of slipway.toml",
            ),
            ("x", "10.0.0.0/8", "SubnetOverlap: 10.0.0.0/8 overlaps 10.0.0.0/24"),
        ] {
            let judged = judge(&file, [wanted(name, 0, subnet)]);
            let found = verdict(&judged, name);
            assert!(found.starts_with(wanted_verdict) && found.is_empty() == wanted_verdict.is_empty(), "{found}");
            assert_eq!(judged.in_force.len(), if wanted_verdict.is_empty() { 3 } else { 2 });
        }
        let broken = WantedNetwork { config: Err("spec.subnet: no".into()), ..wanted("x", 0, "10.0.9.0/24") };
        let judged = judge(&file, [broken, wanted("y", 1, "10.0.9.0/24")]);
        assert_eq!(verdict(&judged, "x"), "InvalidSpec: spec.subnet: no");
        assert_eq!(in_force(&judged), ["a", "b", "y"], "it is in nobody's way");
    }

    #[test]
    fn there_are_only_so_many() {
        let subnet = |at: usize| format!("10.{}.{}.0/24", at / 256, at % 256);
        let all = (0..MOST + 2).map(|at| wanted(&format!("n{at}"), i64::try_from(at).unwrap(), &subnet(at)));
        let judged = judge(&[config("file", "172.16.0.0/24")], all.clone());
        assert_eq!(judged.in_force.len(), 1 + MOST);
        assert!(verdict(&judged, &format!("n{MOST}")).starts_with("TooMany: 256 Networks"), "{judged:?}");
        let left = judge(&[], all.skip(1));
        assert_eq!(verdict(&left, &format!("n{MOST}")), "");
    }

    #[test]
    fn of_two_that_overlap_the_older_is_in_force() {
        let all = [
            wanted("young", 20, "10.0.0.0/25"),
            wanted("old", 10, "10.0.0.0/24"),
            // Of the same second: by name.
            wanted("d", 30, "10.2.0.0/24"),
            wanted("c", 30, "10.2.0.0/24"),
            wanted("beside", 40, "10.0.1.0/24"),
        ];
        let judged = judge(&[], all.clone());
        assert_eq!(in_force(&judged), ["old", "c", "beside"]);
        let told = "SubnetOverlap: 10.0.0.0/25 overlaps 10.0.0.0/24 of the Network old, which is older and in force";
        assert_eq!(verdict(&judged, "young"), told);
        assert!(verdict(&judged, "d").contains("of the Network c"));
        // One that cannot be served is in nobody's way, and is in force beside others.
        let mut absent = all.clone();
        absent[1].present = false;
        absent[4].present = false;
        let judged = judge(&[], absent);
        assert_eq!(in_force(&judged), ["young", "c", "beside"]);
        assert!(verdict(&judged, "old").ends_with("in force as there is no interface e0"), "{judged:?}");
        // When it goes, the next one comes alive.
        let left = judge(&[], all.into_iter().filter(|one| one.name != "old"));
        assert_eq!(in_force(&left), ["young", "c", "beside"]);
    }
}
