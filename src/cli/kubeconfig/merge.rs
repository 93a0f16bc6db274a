//! What a kubeconfig becomes when an appliance is added to it. On plain values, so that what this program does not know stays.

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

/// Cluster and context, unless another name is asked for.
pub(super) const DEFAULT_NAME: &str = "slipway";

/// What is put into a kubeconfig.
#[derive(Clone, Copy, Debug)]
pub(super) struct KubeconfigEntry<'a> {
    /// Cluster and context.
    pub name: &'a str,
    /// Where the cluster is.
    pub endpoint: &'a str,
    /// Whether the name was asked for: then it is taken from whoever has it.
    pub chosen: bool,
    /// Whether it becomes the current context in any case.
    pub set_current: bool,
}

/// A kubeconfig's text as a value; an empty one for an empty text.
pub(super) fn parse(text: &str) -> anyhow::Result<Value> {
    if text.trim().is_empty() {
        return Ok(json!({"apiVersion": "v1", "kind": "Config"}));
    }
    let value: Value = serde_saphyr::from_str(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    let kind = value.get("kind").and_then(Value::as_str);
    ensure!(value.is_object() && kind.is_none_or(|kind| kind == "Config"), "this is no kubeconfig");
    for list in ["clusters", "users", "contexts"] {
        let listed = value.get(list).is_none_or(|list| list.is_null() || list.is_array());
        ensure!(listed, "this is no kubeconfig: {list} is no list");
    }
    Ok(value)
}

/// A value as the text of a kubeconfig.
pub(super) fn print(value: &Value) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(value)?;
    // What is written is read by others, and may be all that they have.
    ensure!(parse(&text)? == *value, "it cannot be written as YAML without a change; nothing was written");
    Ok(text)
}

fn find<'v>(config: &'v Value, list: &str, name: &str) -> Option<&'v Value> {
    config.get(list)?.as_array()?.iter().find(|entry| entry["name"] == name)
}

fn put(config: &mut Map<String, Value>, list: &str, entry: Value) {
    let entries = config.entry(list).or_insert(Value::Null);
    if entries.is_null() {
        *entries = json!([]);
    }
    let Some(entries) = entries.as_array_mut() else { return };
    match entries.iter_mut().find(|known| known["name"] == entry["name"]) {
        Some(known) => *known = entry,
        None => entries.push(entry),
    }
}

impl KubeconfigEntry<'_> {
    fn user(&self) -> String {
        format!("{}-admin", self.name)
    }

    /// Refuses to take a name that another cluster has.
    pub(super) fn free_in(&self, config: &Value) -> anyhow::Result<()> {
        let user = self.user();
        let context = find(config, "contexts", self.name);
        let cluster = find(config, "clusters", self.name);
        let taken = context.is_some() || cluster.is_some() || find(config, "users", &user).is_some();
        let same = cluster.is_some_and(|cluster| cluster["cluster"]["server"] == self.endpoint)
            && context.is_none_or(|context| context["context"]["cluster"] == self.name);
        if taken && !same && !self.chosen {
            let other = cluster.and_then(|cluster| cluster["cluster"]["server"].as_str()).unwrap_or("something else");
            let name = self.name;
            bail!(
                "the name {name} stands for {other} there, and this appliance is {}: choose another with --context NAME, or \
                 replace that one with --context {name}",
                self.endpoint
            );
        }
        Ok(())
    }

    /// The kubeconfig with this entry, of which `made` is a kubeconfig of its own; and its current context.
    pub(super) fn put(&self, mut config: Value, made: &str) -> anyhow::Result<(Value, String)> {
        self.free_in(&config)?;
        let made = parse(made)?;
        let (cluster, user) = (made["clusters"][0]["cluster"].clone(), made["users"][0]["user"].clone());
        let (name, user_name) = (self.name, self.user());
        let known = config.as_object_mut().context("this is no kubeconfig")?;
        put(known, "clusters", json!({"name": name, "cluster": cluster}));
        put(known, "users", json!({"name": user_name, "user": user}));
        put(known, "contexts", json!({"name": name, "context": {"cluster": name, "user": user_name}}));
        let current = known.entry("current-context").or_insert(Value::Null);
        if self.set_current || current.as_str().is_none_or(str::is_empty) {
            *current = name.into();
        }
        let current = current.as_str().unwrap_or_default().to_owned();
        Ok((config, current))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MADE: &str = "apiVersion: v1\nkind: Config\nclusters: [{name: slipway, cluster: {server: 'https://10.0.0.1:8443'}}]\n\
        users: [{name: slipway-admin, user: {client-key-data: eA==}}]\n";
    const OTHERS: &str = "apiVersion: v1\nkind: Config\npreferences: {}\nextensions: [{name: x, extension: {a: 'yes', b: \"1.0\"}}]\n\
        clusters: [{name: prod, cluster: {server: 'https://prod:6443', proxy-url: 'socks5://p'}}]\n\
        users: [{name: me, user: {exec: {command: aws, args: [\"--region\", \"eu\"], env: null}}}]\n\
        contexts: [{name: prod, context: {cluster: prod, user: me, namespace: web}}]\ncurrent-context: prod\n";

    fn entry(name: &str) -> KubeconfigEntry<'_> {
        KubeconfigEntry { name, endpoint: "https://10.0.0.1:8443", chosen: false, set_current: false }
    }

    #[test]
    fn what_is_there_stays_as_it_is() {
        let before = parse(OTHERS).unwrap();
        let (after, current) = entry("slipway").put(before.clone(), MADE).unwrap();
        assert_eq!(current, "prod");
        for list in ["clusters", "users", "contexts"] {
            assert_eq!(after[list].as_array().map(Vec::len), Some(2), "{list}");
            assert_eq!(after[list][0], before[list][0]);
        }
        assert_eq!((&after["extensions"], &after["preferences"]), (&before["extensions"], &before["preferences"]));
        assert_eq!(after["contexts"][1]["context"], json!({"cluster": "slipway", "user": "slipway-admin"}));
        assert_eq!(parse(&print(&after).unwrap()).unwrap(), after);
        // Again: replaced, not doubled.
        let (again, _) = entry("slipway").put(after.clone(), &MADE.replace("eA==", "eQ==")).unwrap();
        assert_eq!(again["users"].as_array().map(Vec::len), Some(2));
        assert_eq!(again["users"][1]["user"]["client-key-data"], "eQ==");
        let (_, current) = KubeconfigEntry { set_current: true, ..entry("slipway") }.put(again, MADE).unwrap();
        assert_eq!(current, "slipway");
    }

    #[test]
    fn a_file_without_a_current_context_gets_one() {
        for text in ["", "  \n", "clusters: null\ncontexts: []\ncurrent-context: ''\n"] {
            let (after, current) = entry("edge").put(parse(text).unwrap(), MADE).unwrap();
            assert_eq!((current.as_str(), &after["clusters"][0]["name"]), ("edge", &json!("edge")), "{text:?}");
        }
    }

    #[test]
    fn a_name_of_another_cluster_is_taken_only_when_it_was_asked_for() {
        let elsewhere = MADE.replace("10.0.0.1", "10.0.0.2");
        let (known, _) = KubeconfigEntry { endpoint: "https://10.0.0.2:8443", ..entry("slipway") }
            .put(parse("").unwrap(), &elsewhere)
            .unwrap();
        let error = entry("slipway").put(known.clone(), MADE).unwrap_err().to_string();
        assert!(error.contains("stands for https://10.0.0.2:8443") && error.contains("--context NAME"), "{error}");
        assert!(KubeconfigEntry { chosen: true, ..entry("slipway") }.put(known, MADE).is_ok());
        // A context of that name that leads elsewhere.
        let context = parse("contexts: [{name: slipway, context: {cluster: prod}}]").unwrap();
        assert!(entry("slipway").free_in(&context).is_err());
    }

    #[test]
    fn what_is_no_kubeconfig_is_left_alone() {
        for text in ["[]", "just words", "kind: Secret", "clusters: {a: b}", "a: [", "a: 1\n---\nb: 2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
