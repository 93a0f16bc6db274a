//! What two ClusterReleases have otherwise. Pure.

use std::collections::BTreeMap;

use crate::api::kaas::ClusterRelease;

/// A line for each thing that the new one has otherwise than the old one: `+` is more, `-` is less, `~` is other.
pub(super) fn differences(old: &ClusterRelease, new: &ClusterRelease) -> Vec<String> {
    let mut lines = Vec::new();
    let (old, new) = (&old.spec, &new.spec);
    compare(
        &mut lines,
        "",
        [old, new].map(|spec| {
            BTreeMap::from([("version".to_owned(), spec.version.clone()), ("type".to_owned(), spec.lcm_type.clone())])
        }),
    );
    let agent = |spec: &crate::api::kaas::ClusterReleaseSpec| {
        let agent = spec.agent.iter().map(|agent| ("agent".to_owned(), agent.version.clone()));
        agent.collect::<BTreeMap<_, _>>()
    };
    compare(&mut lines, "", [agent(old), agent(new)]);
    let kinds: std::collections::BTreeSet<&String> = old.machine_types.keys().chain(new.machine_types.keys()).collect();
    for kind in kinds {
        let steps = [old, new].map(|spec| {
            let steps = spec.machine_types.get(kind).into_iter().flatten();
            steps.map(|step| (step.name.clone(), (step.version.clone(), step.hash()))).collect::<BTreeMap<_, _>>()
        });
        of_steps(&mut lines, kind, &steps);
    }
    compare(
        &mut lines,
        "chart ",
        [old, new].map(|spec| {
            let charts = spec.helm.iter().flat_map(|helm| &helm.releases);
            charts.map(|chart| (chart.release.name.clone(), chart.release.version.clone())).collect()
        }),
    );
    compare(&mut lines, "image ", [old, new].map(|spec| spec.images.clone()));
    compare(
        &mut lines,
        "distribution ",
        [old, new].map(|spec| {
            let all = spec.allowed_distributions.iter();
            all.map(|one| (one.id.clone(), if one.default { "default" } else { "" }.to_owned())).collect()
        }),
    );
    lines
}

fn of_steps(lines: &mut Vec<String>, kind: &str, [old, new]: &[BTreeMap<String, (String, String)>; 2]) {
    for (name, (version, hash)) in new {
        match old.get(name) {
            None => lines.push(format!("+ {kind} step {name} {version}")),
            Some((before, was)) if was != hash => {
                let how = if before == version {
                    format!("{version}, other parameters")
                } else {
                    format!("{before} -> {version}")
                };
                lines.push(format!("~ {kind} step {name} {how}"));
            }
            Some(_) => {}
        }
    }
    let gone = old.iter().filter(|(name, _)| !new.contains_key(*name));
    lines.extend(gone.map(|(name, (version, _))| format!("- {kind} step {name} {version}")));
}

fn compare(lines: &mut Vec<String>, what: &str, [old, new]: [BTreeMap<String, String>; 2]) {
    for (name, value) in &new {
        match old.get(name) {
            None => lines.push(format!("+ {what}{name} {value}")),
            Some(before) if before != value => lines.push(format!("~ {what}{name} {before} -> {value}")),
            Some(_) => {}
        }
    }
    let gone = old.iter().filter(|(name, _)| !new.contains_key(*name));
    lines.extend(gone.map(|(name, value)| format!("- {what}{name} {value}")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::release::list::tests::known;

    #[test]
    fn what_is_other_is_a_line() {
        let known = known();
        let (new, old) = (&known.clusters[0], &known.clusters[1]);
        assert_eq!(
            differences(old, new),
            ["~ version 1.9.0 -> 1.10.0", "~ worker step kubelet 1, other parameters", "~ chart net 1.0.0 -> 2.0.0",]
        );
        let mut less = new.clone();
        less.spec.machine_types.get_mut("worker").unwrap().pop();
        less.spec.helm = None;
        less.spec.machine_types.entry("control".into()).or_default().push(<_>::default());
        assert_eq!(differences(new, &less), ["+ control step  ", "- worker step kubelet 1", "- chart net 2.0.0"]);
        assert!(differences(new, new).is_empty());
    }
}
