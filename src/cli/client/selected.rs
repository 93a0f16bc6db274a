//! Which hosts a command is for: by names, by labels, or all of the namespace.

use std::collections::HashSet;

use anyhow::bail;
use serde_json::Value;

use super::connect::ClientSession;
use super::request;
use super::types::hosts;
use crate::cli::failure::usage;

/// Which hosts.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cli) struct Selected {
    /// Names of hosts
    #[arg(value_name = "HOST")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub by_label: ByLabel,
}

/// Hosts by what they have.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cli) struct ByLabel {
    /// Hosts with these labels: rack=7,role!=spare
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub selector: Option<String>,
}

impl Selected {
    pub(super) fn or_all(&self, all: bool) -> (&[String], Option<&str>, bool) {
        (&self.names, self.by_label.selector.as_deref(), all)
    }
}

/// Whether it is said which hosts are meant: before anybody is asked.
pub(super) fn check(names: &[String], selector: Option<&str>, all: bool) -> anyhow::Result<()> {
    if selector.is_some_and(|selector| selector.trim().is_empty()) {
        return Err(usage("an empty --selector would be every host: write labels"));
    }
    if names.is_empty() != (all || selector.is_some()) {
        let or_all = "name hosts, or select them with --selector; --help says more";
        return Err(usage(if names.is_empty() { or_all } else { "give either names or a selection" }));
    }
    Ok(())
}

/// The names of the hosts, each once.
pub(super) async fn names(
    session: &ClientSession,
    names: &[String],
    selector: Option<&str>,
    all: bool,
) -> anyhow::Result<Vec<String>> {
    check(names, selector, all)?;
    let selector = selector.map(str::trim);
    let mut found: Vec<String> = names.to_vec();
    if found.is_empty() {
        let query = [("labelSelector", selector.unwrap_or_default())];
        let path = hosts().path(Some(&session.namespace), None);
        let each = |page: Value| {
            let items = page["items"].as_array().into_iter().flatten();
            found.extend(items.filter_map(|item| item["metadata"]["name"].as_str()).map(str::to_owned));
            Ok(())
        };
        session.pages(&path, &query, request::METADATA, each).await?;
        if found.is_empty() {
            bail!("no host of namespace {} is selected", session.namespace);
        }
    }
    let mut seen = HashSet::new();
    found.retain(|name| seen.insert(name.clone()));
    Ok(found)
}
