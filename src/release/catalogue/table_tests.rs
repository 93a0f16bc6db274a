//! Tables of what releases may be, and of what follows from them.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::charts::{ChartOverride, charts};
use super::join::{active, available_upgrades, distribution, supported};
use super::{cluster_release as content, kaas_release as kaas_content};
use crate::api::kaas::{ClusterRelease, KaaSRelease, LABEL_ACTIVE};

const SUM: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

pub(super) fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(super) fn cluster_release(name: &str, spec: Value) -> ClusterRelease {
    let mut release = json!({"metadata": {"name": name}, "spec": {"version": "1.2.3+4", "lcmType": "kubeadm"}});
    json_patch::merge(&mut release["spec"], &spec);
    of(release)
}

pub(super) fn kaas_release(name: &str, active: bool, supported: Value) -> Value {
    let labels = if active { json!({LABEL_ACTIVE: "true"}) } else { json!({}) };
    json!({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "KaaSRelease", "metadata": {"name": name, "labels": labels},
        "spec": {"version": "1.0.0", "supportedClusterReleases": supported}})
}

#[test]
fn a_cluster_release_makes_sense() {
    let step = |step: Value| json!({"machineTypes": {"worker": [step]}});
    let bash = |params: Value| step(json!({"name": "s", "runner": "bash", "params": params}));
    let download = |params: Value| {
        let mut all = json!({"url": "http://x/y", "sha256": SUM, "path": "/y"});
        json_patch::merge(&mut all, &params);
        step(json!({"name": "s", "runner": "downloader", "params": all}))
    };
    let helm =
        |releases: Value| json!({"helm": {"repositories": [{"name": "r", "url": "https://x/"}], "releases": releases}});
    let long = "x".repeat(100 << 10);
    let many: Vec<Value> = (0..201).map(|at| json!({"name": format!("s{at}"), "params": {"script": "true"}})).collect();
    let rows: Vec<(Value, Option<&str>)> = vec![
        (json!({}), None),
        (json!({"version": "1.0.0-rc.1+25.2"}), None),
        (json!({"version": "v1.0.0"}), Some("spec.version: ")),
        (json!({"version": "1.0"}), Some("spec.version: ")),
        (json!({"lcmType": "byo"}), None),
        (json!({"lcmType": "ucp"}), Some("supported: kubeadm")),
        (json!({"lcmType": ""}), Some("supported: kubeadm")),
        (json!({"machineTypes": {"master": []}}), Some("spec.machineTypes.master: ")),
        (json!({"machineTypes": {"worker": many}}), Some("spec.machineTypes.worker: Too many")),
        (
            json!({"machineTypes": {"worker": [{"name": "a", "params": {"script": "x"}}, {"name": "a", "params": {"script": "y"}}]}}),
            Some("worker[1].name: Duplicate"),
        ),
        (
            json!({"machineTypes": {"worker": [{"name": "a", "params": {"script": "x"}}], "control": [{"name": "a", "params": {"script": "y"}}]}}),
            None,
        ),
        (bash(json!({"script": "true", "timeout": "30m"})), None),
        (bash(json!({"path": "/opt/x"})), None),
        (bash(json!({})), Some("worker[0].params[script]: Required")),
        (bash(json!({"script": ""})), Some("worker[0].params[script]: Required")),
        (bash(json!({"script": "x", "path": "/x"})), Some("one of them is done")),
        (bash(json!({"path": "x"})), Some("no absolute path")),
        (bash(json!({"path": "/x/../y"})), Some("no absolute path")),
        (bash(json!({"script": "x", "timeout": "soon"})), Some("no length of time")),
        (bash(json!({"script": "x", "timeout": "0s"})), Some("no length of time")),
        (bash(json!({"script": "x", "a-b": "c"})), Some("no name of a variable")),
        (bash(json!({"script": "x", "SLIPWAY_RESULT": "/etc/passwd"})), Some("no name of a variable")),
        (bash(json!({"script": long})), Some("Too long")),
        (bash(json!({"script": "a\u{0}b"})), Some("NUL")),
        (step(json!({"name": "", "params": {"script": "x"}})), Some("worker[0].name: ")),
        (download(json!({})), None),
        (download(json!({"mode": "0755"})), None),
        (download(json!({"url": null})), Some("params[url]: Required")),
        (download(json!({"sha256": null})), Some("params[sha256]: Required")),
        (download(json!({"path": null})), Some("params[path]: Required")),
        (download(json!({"path": "y"})), Some("no absolute path")),
        (download(json!({"sha256": "ABC"})), Some("no SHA-256")),
        (download(json!({"url": "file:///etc/shadow"})), Some("params[url]: ")),
        (download(json!({"url": "http://user:secret@x/y"})), Some("without a login")),
        (download(json!({"mode": "rwx"})), Some("no mode")),
        (step(json!({"name": "s", "runner": "ansible", "params": {}})), Some("params[playbook]: Required")),
        (step(json!({"name": "s", "runner": "ansible", "params": {"playbook": "/opt/p.yml"}})), None),
        (json!({"agent": {"version": "1", "downloadURL": "http://x/a"}}), Some("spec.agent.sha256: Required")),
        (json!({"agent": {"version": "1", "downloadURL": "http://x/a", "sha256": SUM}}), None),
        (json!({"agent": {"sha256": "x"}}), Some("no SHA-256")),
        (json!({"allowedDistributions": [{"id": "a", "default": true}, {"id": "b"}]}), None),
        (
            json!({"allowedDistributions": [{"id": "a", "default": true}, {"id": "b", "default": true}]}),
            Some("two default distributions, a and b"),
        ),
        (json!({"allowedDistributions": [{"id": "a/B"}, {"id": "A/b"}]}), Some("[1].id: Duplicate")),
        (json!({"allowedDistributions": [{"id": "a", "image": {"url": ""}}]}), Some("image.url: Required")),
        (json!({"allowedNodeLabels": [{"key": "a b"}]}), Some("no key of a label")),
        (json!({"images": {"helmController": ""}}), Some("no image of containers")),
        (helm(json!([{"name": "a", "chart": "r/a"}, {"name": "b", "chart": "r/b", "requires": ["a"]}])), None),
        (helm(json!([{"name": "a", "chart": "other/a"}])), Some("repository that is not in the list")),
        (helm(json!([{"name": "a"}])), Some("chart: Required")),
        (helm(json!([{"name": "a", "chartURL": "file:///x"}])), Some("chartURL: ")),
        (helm(json!([{"name": "A_b", "chart": "r/a"}])), Some("small letters")),
        (helm(json!([{"name": "a", "chart": "r/a"}, {"name": "a", "chart": "r/b"}])), Some("[1].name: Duplicate")),
        (helm(json!([{"name": "a", "chart": "r/a", "requires": ["c"]}])), Some("no Helm release of this list")),
        (helm(json!([{"name": "a", "chart": "r/a", "requires": ["a"]}])), Some("circle: a")),
        (
            helm(
                json!([{"name": "x", "chart": "r/x", "requires": ["a"]}, {"name": "a", "chart": "r/a", "requires": ["b"]},
                {"name": "b", "chart": "r/b", "requires": ["a"]}]),
            ),
            Some("circle: a, b"),
        ),
    ];
    for (spec, wanted) in rows {
        let shown = spec.to_string().chars().take(200).collect::<String>();
        let faults = content::faults(&cluster_release("r", spec).spec);
        let told: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect();
        match wanted {
            None => assert!(told.is_empty(), "{shown}: {told:?}"),
            Some(wanted) => assert!(told.iter().any(|fault| fault.contains(wanted)), "{shown}: {told:?}"),
        }
        assert!(!format!("{told:?}").contains("secret"), "a password is repeated");
    }
}

#[test]
fn a_kaas_release_makes_sense() {
    let one = |version: &str, upgrades: Value| json!({"name": format!("r-{version}"), "version": version, "availableUpgrades": upgrades});
    let to = |version: &str| json!([{"version": version}]);
    let rows: Vec<(Value, Option<&str>)> = vec![
        (json!([]), None),
        (json!([one("1.0.0", to("1.0.1")), one("1.0.1", json!([]))]), None),
        (json!([one("21.0.0+25.2", to("21.0.0+25.2.1")), one("21.0.0+25.2.1", json!([]))]), None),
        (json!([one("1.0.0", to("1.0.2"))]), Some("version of no release in this list")),
        (json!([one("1.0.0", to("1.0.0"))]), Some("is not newer than 1.0.0")),
        (json!([one("1.0.1", to("1.0.0")), one("1.0.0", json!([]))]), Some("is not newer than 1.0.1")),
        (
            json!([one("1.0.0", json!([{"version": "1.0.1"}, {"version": "1.0.1"}])), one("1.0.1", json!([]))]),
            Some("Duplicate"),
        ),
        (json!([{"name": "a", "version": "1.0.0"}, {"name": "a", "version": "1.0.1"}]), Some("[1].name: Duplicate")),
        (json!([{"name": "a", "version": "1.0.0"}, {"name": "b", "version": "1.0.0"}]), Some("[1].version: Duplicate")),
        (json!([{"name": "", "version": "1.0.0"}]), Some("no name")),
        (json!([{"name": "a", "version": "latest"}]), Some("no semantic version")),
    ];
    for (list, wanted) in rows {
        let release: KaaSRelease = of(kaas_release("k", false, list.clone()));
        let faults = kaas_content::faults(&release.spec);
        let told: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect();
        match wanted {
            None => assert!(told.is_empty(), "{list}: {told:?}"),
            Some(wanted) => assert!(told.iter().any(|fault| fault.contains(wanted)), "{list}: {told:?}"),
        }
    }
    let mut release: KaaSRelease = of(kaas_release("k", false, json!([])));
    release.spec.version = String::new();
    release.spec.regional_helm_releases = of(json!([{"name": "a", "requires": ["b"]}]));
    assert_eq!(kaas_content::faults(&release.spec).len(), 3);
}

#[test]
fn names_and_versions_are_joined_through_the_list() {
    let list = json!([
        {"name": "old", "version": "1.9.0", "availableUpgrades": [{"version": "1.10.0+2"}, {"version": "1.9.1", "rebootRequired": true},
            {"version": "1.10.0+1"}, {"version": "1.10.0-rc.1"}]},
        {"name": "b", "version": "1.10.0+2", "providers": {"supported": ["baremetal", "equinix"]}},
        {"name": "a", "version": "1.10.0+1", "providers": {"supported": []}},
        {"name": "rc", "version": "1.10.0-rc.1", "providers": {"supported": ["aws"]}},
        {"name": "fix", "version": "1.9.1"},
    ]);
    let kaas: KaaSRelease = of(kaas_release("k", true, list));
    let upgrades = |name: &str| available_upgrades(&kaas, name).into_iter().map(|to| to.name).collect::<Vec<_>>();
    assert_eq!(upgrades("old"), ["fix", "rc", "a", "b"]);
    assert_eq!(available_upgrades(&kaas, "old")[0].version, "1.9.1");
    assert!(available_upgrades(&kaas, "old")[0].reboot_required);
    assert!(upgrades("b").is_empty() && upgrades("unknown").is_empty() && upgrades("1.9.0").is_empty());
    for (name, provider, wanted) in [
        ("old", "baremetal", true),
        ("old", "aws", true),
        ("b", "baremetal", true),
        ("b", "aws", false),
        ("a", "aws", true),
        ("rc", "baremetal", false),
        ("unknown", "baremetal", false),
        ("1.9.0", "baremetal", false),
    ] {
        assert_eq!(supported(&kaas, name, provider), wanted, "{name} {provider}");
    }
    let off: KaaSRelease = of(kaas_release("off", false, json!([])));
    let other: KaaSRelease = of(kaas_release("a-other", true, json!([])));
    assert_eq!(active([&off, &kaas]).unwrap().name_any(), "k");
    assert!(active([&off]).unwrap_err().to_string().contains("slipway release activate NAME"));
    assert!(active([&kaas, &off, &other]).unwrap_err().to_string().contains("a-other and k"));
}

#[test]
fn a_machine_runs_what_it_asks_for_or_the_default() {
    let release = |list: Value| cluster_release("r", json!({"allowedDistributions": list}));
    let two = release(json!([{"id": "ubuntu/jammy"}, {"id": "Ubuntu/Noble", "default": true}]));
    let none = release(json!([{"id": "ubuntu/jammy"}]));
    for (release, asked, wanted) in [
        (&two, None, Ok("Ubuntu/Noble")),
        (&two, Some(""), Ok("Ubuntu/Noble")),
        (&two, Some("UBUNTU/jammy"), Ok("ubuntu/jammy")),
        (&two, Some("ubuntu/noble"), Ok("Ubuntu/Noble")),
        (&two, Some("debian"), Err("the release r has no distribution \"debian\"; it has: ubuntu/jammy, Ubuntu/Noble")),
        (&none, Some("ubuntu/jammy"), Ok("ubuntu/jammy")),
        (
            &none,
            None,
            Err("the release r has no default distribution: say which one the machine is to run; it has: ubuntu/jammy"),
        ),
    ] {
        let found = distribution(release, asked).map(|one| one.id.as_str()).map_err(|fault| fault.to_string());
        assert_eq!(found, wanted.map_err(str::to_owned), "{asked:?}");
    }
    let empty = release(json!([]));
    assert!(distribution(&empty, None).unwrap_err().to_string().ends_with("it has: none"));
}

#[test]
fn a_cluster_has_the_charts_of_its_release_with_its_own_values() {
    let helm = json!({"helm": {"releases": [
        {"name": "net", "required": true, "values": {"mtu": 1500, "pools": [1, 2], "deep": {"a": 1, "b": {"c": 1}}}},
        {"name": "store", "requires": ["net"]},
        {"name": "apps", "requires": ["store"], "values": {"x": 1}},
    ]}});
    let release = cluster_release("r", helm);
    let made = |overrides: Value| -> Result<Vec<(String, Value)>, String> {
        let overrides: Vec<ChartOverride> = of(overrides);
        let charts = charts(&release, &overrides).map_err(|fault| fault.to_string())?;
        Ok(charts.into_iter().map(|chart| (chart.name, chart.values.unwrap_or_default())).collect())
    };
    let plain = |more: Value| {
        let mut net = json!({"mtu": 1500, "pools": [1, 2], "deep": {"a": 1, "b": {"c": 1}}});
        json_patch::merge(&mut net, &more);
        net
    };
    let all = |net: Value, store: Value| {
        vec![("net".to_owned(), net), ("store".to_owned(), store), ("apps".to_owned(), json!({"x": 1}))]
    };
    assert_eq!(made(json!([])), Ok(all(plain(json!({})), Value::Null)));
    assert_eq!(made(json!([{"name": "net", "enabled": true}])), Ok(all(plain(json!({})), Value::Null)));
    let values = json!({"pools": [3], "deep": {"b": {"d": 2}}, "new": true});
    let merged = json!({"mtu": 1500, "pools": [3], "deep": {"a": 1, "b": {"c": 1, "d": 2}}, "new": true});
    assert_eq!(made(json!([{"name": "net", "values": values}])), Ok(all(merged, Value::Null)));
    // Null takes a default away only in Helm.
    let null = made(json!([{"name": "net", "values": {"mtu": null}}])).unwrap();
    assert_eq!(null[0].1.as_object().unwrap().get("mtu"), Some(&Value::Null));
    assert_eq!(made(json!([{"name": "store", "values": {"a": 1}}])), Ok(all(plain(json!({})), json!({"a": 1}))));
    let off = made(json!([{"name": "store", "enabled": false}, {"name": "apps", "enabled": false}])).unwrap();
    assert_eq!(off.len(), 1);
    for (overrides, said) in [
        (json!([{"name": "net", "enabled": false}]), "the Helm release \"net\" is required: it cannot be disabled"),
        (json!([{"name": "odd"}]), "the release r has no Helm release \"odd\"; it has: net, store, apps"),
        (json!([{"name": "net"}, {"name": "net"}]), "is named twice"),
        (json!([{"name": "store", "enabled": false}]), "\"apps\" requires \"store\", which is disabled"),
    ] {
        let refused = made(overrides.clone()).unwrap_err();
        assert!(refused.contains(said), "{overrides}: {refused}");
    }
    assert_eq!(charts(&cluster_release("empty", json!({})), &[]), Ok(Vec::new()));
}
