//! Messages for objects that are not there: who has a similar name, and where there is one.

use serde_json::Value;

use super::connect::ClientSession;
use super::request;
use super::suggest;
use super::types::ServedType;

/// Says that there is no such object, and what may have been meant. Looks at the names of all namespaces, if it may.
pub(super) async fn explain(session: &ClientSession, of: &ServedType, name: &str) -> String {
    let mut known = Vec::new();
    let collect = |page: Value, known: &mut Vec<(String, String)>| {
        let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
        let text = |item: &Value, field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
        known.extend(items.iter().map(|item| (text(item, "namespace"), text(item, "name"))));
        Ok(())
    };
    let everywhere =
        session.pages(&of.path(None, None), &[], request::METADATA, |page| collect(page, &mut known)).await;
    if everywhere.is_err() && of.namespaced {
        known.clear();
        let here = of.path(Some(&session.namespace), None);
        session.pages(&here, &[], request::METADATA, |page| collect(page, &mut known)).await.ok();
    }
    sentence(of, name, &session.namespace, &known)
}

/// `known` are namespaces and names.
fn sentence(of: &ServedType, name: &str, namespace: &str, known: &[(String, String)]) -> String {
    let noun = of.noun();
    if !of.namespaced {
        let meant = suggest::nearest(name, known.iter().map(|(_, name)| name.as_str()));
        return format!("no {noun} named {name:?}{}", did_you_mean(meant));
    }
    let start = format!("no {noun} named {name:?} in namespace {namespace:?}");
    let mut elsewhere: Vec<&str> = known
        .iter()
        .filter(|(other, known)| known == name && other != namespace)
        .map(|(other, _)| other.as_str())
        .collect();
    elsewhere.sort_unstable();
    match elsewhere.as_slice() {
        [] => {}
        [one] => return format!("{start}; there is one in namespace {one}: -n {one}"),
        all => return format!("{start}; there is one in namespaces {}", all.join(", ")),
    }
    let here = known.iter().filter(|(other, _)| other == namespace).map(|(_, name)| name.as_str());
    if let Some(meant) = suggest::nearest(name, here) {
        return start + &did_you_mean(Some(meant));
    }
    let meant = suggest::nearest(name, known.iter().map(|(_, name)| name.as_str()));
    match known.iter().find(|(_, name)| Some(name.as_str()) == meant) {
        Some((other, meant)) => format!("{start}; did you mean {meant:?} in namespace {other}?"),
        None => start,
    }
}

fn did_you_mean(meant: Option<&str>) -> String {
    meant.map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::client::types::tests::types;

    #[test]
    fn what_is_missing_is_looked_for_elsewhere() {
        let types = types();
        let host = types.find("host").unwrap()[0];
        let known: Vec<(String, String)> =
            [("default", "web-01"), ("rack", "db-1"), ("rack", "spare"), ("lab", "spare")]
                .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
                .to_vec();
        for (name, wanted) in [
            ("web-1", "no host named \"web-1\" in namespace \"default\"; did you mean \"web-01\"?"),
            ("db-1", "no host named \"db-1\" in namespace \"default\"; there is one in namespace rack: -n rack"),
            ("spare", "no host named \"spare\" in namespace \"default\"; there is one in namespaces lab, rack"),
            ("db-2", "no host named \"db-2\" in namespace \"default\"; did you mean \"db-1\" in namespace rack?"),
            ("storage-9", "no host named \"storage-9\" in namespace \"default\""),
        ] {
            assert_eq!(sentence(host, name, "default", &known), wanted);
        }
        let namespace = types.find("ns").unwrap()[0];
        let known = [(String::new(), "rack".to_owned())];
        assert_eq!(
            sentence(namespace, "rock", "default", &known),
            "no namespace named \"rock\"; did you mean \"rack\"?"
        );
    }
}
