//! The page on metrics and the folder `monitoring` against the code: operators find there what a scrape shows, and alerts and
//! dashboard ask for what there is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

use super::{files, is_test, shipped};

const PAGE: &str = include_str!("../../docs/metrics.md");

/// Names without what the encoder adds.
fn names(pattern: &str, text: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).unwrap();
    let all = pattern.captures_iter(text).map(|found| found[1].to_owned());
    let ends = ["_total", "_bucket", "_sum", "_count"];
    all.map(|name| ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name).to_owned()).collect()
}

#[test]
fn the_page_on_metrics_has_all_that_are_registered_and_no_others() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&top, &mut found);
    // What Ansible is told has such names, too.
    let counts = |path: &Path| path.ends_with("meters.rs");
    found.retain(|path| counts(path) || !["ansible", "kubespray"].iter().any(|room| path.starts_with(top.join(room))));
    let shipped = |path: &Path| shipped(&fs::read_to_string(path).unwrap());
    let code: String =
        found.iter().filter(|path| !is_test(path.strip_prefix(&top).unwrap())).map(|path| shipped(path)).collect();
    let registered = names(r#""(slipway_[a-z_]+)""#, &code);
    assert!(registered.len() > 40, "{registered:?}");
    let shown = names(r"\b(slipway_[a-z_]+)", PAGE);
    let missing: Vec<_> = registered.difference(&shown).collect();
    assert!(missing.is_empty(), "docs/metrics.md does not have {missing:?}");
    let made_up: Vec<_> = shown.difference(&registered).collect();
    assert!(made_up.is_empty(), "nothing registers {made_up:?} of docs/metrics.md");
    for file in ["prometheus-rules.yaml", "grafana-dashboard.json"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring").join(file)).unwrap();
        let asked = names(r"\b(slipway_[a-z_]+)", &text);
        let made_up: Vec<_> = asked.difference(&registered).collect();
        assert!(made_up.is_empty() && asked.len() > 8, "nothing registers {made_up:?} of monitoring/{file}");
    }
}
