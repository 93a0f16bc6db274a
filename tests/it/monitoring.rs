//! What the folder `monitoring` ships, the dashboard and the alerts, against a scrape of an appliance that served a machine, as
//! Prometheus scrapes it: with a token of the role monitor.

mod promql;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use slipway::simulate::appliance_process::ApplianceProcess;
use tokio::process::Command;
use tokio::time::timeout;

use crate::needs;
use promql::Query;

const RULES: &str = include_str!("../../monitoring/prometheus-rules.yaml");
const PAGES: [&str; 2] = [include_str!("../../docs/metrics.md"), include_str!("../../docs/dhcp.md")];
const DASHBOARD: &str = include_str!("../../monitoring/grafana-dashboard.json");
const DEADLINE: Duration = Duration::from_secs(180);
/// Labels that Prometheus puts to every series of a target.
const OF_TARGET: [&str; 2] = ["instance", "job"];

/// What is shown only once it happened to an appliance that has what it is about: names and labels as docs/metrics.md has them.
const RARE: [(&str, &[&str]); 3] = [
    ("slipway_host_stuck", &["state", "reason"]),
    ("slipway_leads", &[]),
    ("slipway_webhook_calls_total", &["question", "answer"]),
];

/// The labels of a series, each with the values that it has.
type Labels = BTreeMap<String, BTreeSet<String>>;

/// Names of series with their labels, of a scrape.
fn series(scrape: &str) -> BTreeMap<String, Labels> {
    let mut all: BTreeMap<String, Labels> = BTreeMap::new();
    for line in scrape.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap();
        let labels = all.entry(line[..end].to_owned()).or_default();
        if let Some(list) = line[end..].strip_prefix('{').and_then(|list| list.split_once("} ")) {
            for (label, value) in list.0.split("\",").map(|one| one.split_once("=\"").unwrap()) {
                labels.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
    all
}

/// The alerts by name.
fn alerts() -> Vec<(String, String)> {
    let rules: Value = serde_saphyr::from_str(RULES).unwrap();
    let groups = rules["groups"].as_array().unwrap().clone();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules.map(|rule| (text(&rule["alert"]), text(&rule["expr"]))).collect()
}

/// The queries of the dashboard by panel, with its variables put in.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query =
                target["expr"].as_str().unwrap().replace("$__rate_interval", "5m").replace("$instance", "a:8443");
            all.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"].as_str().and_then(|query| query.strip_prefix("label_values(")) {
            let (series, _label) = query.strip_suffix(')').unwrap().rsplit_once(',').unwrap();
            all.push((variable["name"].as_str().unwrap().to_owned(), series.to_owned()));
        }
    }
    all
}

#[test]
fn every_query_is_one_that_prometheus_parses() {
    let queries: Vec<(String, String)> = alerts().into_iter().chain(panels()).collect();
    assert!(queries.len() > 20, "{queries:?}");
    for (name, query) in &queries {
        assert!(!query.contains('$'), "{name}: a variable that nobody puts in: {query}");
    }
    if !needs::program("promtool") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let file = folder.path().join("rules.yaml");
        std::fs::write(&file, text).unwrap();
        let output =
            std::process::Command::new("promtool").args(["check", "rules", "--lint-fatal"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    check(RULES);
    let rules: Vec<Value> = queries
        .iter()
        .enumerate()
        .map(|(number, (_, query))| serde_json::json!({"record": format!("q{number}"), "expr": query}))
        .collect();
    check(&serde_json::json!({"groups": [{"name": "all", "rules": rules}]}).to_string());
}

#[test]
fn every_alert_says_what_to_do() {
    let rules: Value = serde_saphyr::from_str(RULES).unwrap();
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        for text in ["/alert", "/annotations/summary", "/annotations/do", "/labels/severity"] {
            assert!(rule.pointer(text).and_then(Value::as_str).is_some_and(|text| !text.is_empty()), "{text}: {rule}");
        }
        let name = rule["alert"].as_str().unwrap();
        assert!(PAGES[0].contains(&format!("`{name}`")), "{name} is not in docs/metrics.md");
    }
}

async fn slipway(arguments: &[&str], kubeconfig: Option<&Path>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(arguments).env_remove("SLIPWAY_CONFIG").kill_on_drop(true);
    command.envs(kubeconfig.map(|file| ("KUBECONFIG", file)));
    let output = timeout(DEADLINE, command.output()).await.expect("it hangs").unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An appliance, and its API as somebody with a token sees it.
struct Site {
    folder: tempfile::TempDir,
    appliance: ApplianceProcess,
    api: String,
    http: reqwest::Client,
}

impl Site {
    async fn new() -> Self {
        slipway::appliance::install_tls_provider();
        let folder = tempfile::tempdir().unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_slipway"));
        let appliance = ApplianceProcess::start(program, None, 1, false).await.unwrap();
        let config: toml::Table = std::fs::read_to_string(&appliance.config).unwrap().parse().unwrap();
        let data = PathBuf::from(config["data_dir"].as_str().unwrap());
        let ca = reqwest::Certificate::from_pem(&std::fs::read(data.join("pki/ca.crt")).unwrap()).unwrap();
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([ca]).build().unwrap();
        let api = format!("https://{}", config["api"]["listen"].as_str().unwrap());
        Self { folder, appliance, api, http }
    }

    async fn slipway(&self, arguments: &str) -> String {
        let mut all: Vec<&str> = arguments.split(' ').collect();
        all.extend(["--config", self.appliance.config.to_str().unwrap()]);
        slipway(&all, None).await
    }

    async fn get(&self, path: &str, token: &str) -> (u16, String) {
        let sent = self.http.get(format!("{}{path}", self.api)).bearer_auth(token.trim()).send();
        let answer = timeout(DEADLINE, sent).await.unwrap().unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_monitors_reads_metrics_and_health_and_no_object() {
    let site = Site::new().await;
    let token = site.slipway("token create prometheus --role monitor").await;
    for path in ["/metrics", "/readyz", "/livez", "/healthz"] {
        assert_eq!(site.get(path, &token).await.0, 200, "{path}");
    }
    for path in [
        "/api/v1/namespaces",
        "/api/v1/secrets",
        "/api/v1/events",
        "/apis/metal3.io/v1alpha1/baremetalhosts",
        "/apis/slipway.dev/v1alpha1/dhcpleases",
        "/apis/slipway.dev/v1alpha1/tasks",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    ] {
        assert_eq!(site.get(path, &token).await.0, 403, "{path}");
    }
    let other = site.slipway("token create nobody").await;
    assert_eq!(site.get("/metrics", &other).await.0, 403);
    assert!(site.slipway("token list").await.contains("system:monitoring"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_asks_for_what_a_scrape_shows() {
    let site = Site::new().await;
    let kubeconfig = site.folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, site.slipway("kubeconfig").await).unwrap();
    let network = site.appliance.network;
    let run = format!(
        "simulate --kubeconfig {} --relay {} --dhcp {} --tftp-port {} --boot ipxe --bmc redfish --download head --machines 1 \
         --until available --keep --deadline 2m",
        kubeconfig.display(),
        network.relay,
        network.dhcp,
        network.tftp_port
    );
    slipway(&run.split_whitespace().collect::<Vec<_>>(), Some(&kubeconfig)).await;
    let token = site.slipway("token create prometheus --role monitor").await;
    let (code, scrape) = site.get("/metrics", &token).await;
    assert_eq!(code, 200);
    let mut known = series(&scrape);
    for (name, labels) in RARE {
        let labels_there = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(", ")) };
        assert!(PAGES[0].contains(&format!("`{name}{labels_there}`")), "{name}");
        known
            .entry(name.to_owned())
            .or_default()
            .extend(labels.iter().map(|label| ((*label).to_owned(), BTreeSet::new())));
    }
    let mut asked = BTreeSet::new();
    for (place, text) in alerts().into_iter().chain(panels()) {
        let query = Query::parse(&text);
        assert!(!query.selectors.is_empty(), "{place}: {text}");
        let mut labels: BTreeSet<&str> = OF_TARGET.into();
        for (name, matched) in &query.selectors {
            // Prometheus' own.
            if name == "up" {
                continue;
            }
            let has = known.get(name).unwrap_or_else(|| panic!("{place}: a scrape has no {name}: {text}"));
            for (label, value) in matched {
                let of_target = OF_TARGET.contains(&label.as_str());
                assert!(has.contains_key(label) || of_target, "{place}: {name} has no {label}: {has:?}");
                // What did not happen here is a word of the page at least.
                let is_one = |value: &String| {
                    has[label].contains(value) || PAGES.iter().any(|page| page.contains(&format!("`{value}`")))
                };
                assert!(of_target || value.as_ref().is_none_or(is_one), "{place}: no {label} is {value:?}: {has:?}");
            }
            labels.extend(has.keys().map(String::as_str));
            asked.insert(name.clone());
        }
        for label in &query.grouped {
            assert!(labels.contains(label.as_str()), "{place}: nothing has the label {label}: {text}");
        }
    }
    assert!(asked.len() > 25, "{asked:?}");
}
