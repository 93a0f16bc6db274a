//! What a `clientConfig` may say, of webhooks for admission and of those that convert. Pure.

use reqwest::Url;
use serde_json::Value;

use super::super::objects::names;
use crate::api::{is_dns_label, is_dns_subdomain};

/// A field below `clientConfig`, its value, and what is wrong with it; without a value it is missing.
pub(in crate::apiserver) type ClientConfigFault = (String, Option<Value>, String);

/// What is wrong with it, in upstream's words. Its `caBundle` may be filled in later, and is judged when it is used.
pub(in crate::apiserver) fn faults(config: &Value) -> Vec<ClientConfigFault> {
    let mut faults = Vec::new();
    match (config["url"].as_str(), config.get("service").filter(|service| service.is_object())) {
        (Some(url), None) => url_faults(url, &mut faults),
        (None, Some(service)) => service_faults(service, &mut faults),
        _ => faults.push((String::new(), None, "exactly one of url or service is required".into())),
    }
    faults
}

/// What a URL is to look like.
const FORM: &str = "; desired format: https://host[/path]";

fn url_faults(text: &str, faults: &mut Vec<ClientConfigFault>) {
    let mut invalid = |value: String, detail: String| faults.push((".url".into(), Some(value.into()), detail));
    let https = "'https' is the only allowed URL scheme";
    // To upstream a URL may be without scheme and host, and a browser takes the first word for the host, however many slashes
    // stand before it.
    let (scheme, rest) = text.split_once(':').filter(|(scheme, _)| !scheme.contains('/')).unwrap_or_default();
    let host = rest.strip_prefix("//").is_some_and(|host| !host.is_empty() && !host.starts_with(['/', '\\', '?', '#']));
    if !host && !text.starts_with(':') {
        if !scheme.eq_ignore_ascii_case("https") {
            invalid(scheme.to_owned(), format!("{https}{FORM}"));
        }
        return invalid(String::new(), format!("host must be specified{FORM}"));
    }
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => {
            faults.push((".url".into(), None, format!("url must be a valid URL: {error}{FORM}")));
            return;
        }
    };
    if url.scheme() != "https" {
        invalid(url.scheme().to_owned(), format!("{https}{FORM}"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        invalid(String::new(), format!("host must be specified{FORM}"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        invalid("<redacted>".into(), "user information is not permitted in the URL".into());
    }
    if let Some(fragment) = url.fragment().filter(|text| !text.is_empty()) {
        invalid(fragment.to_owned(), "fragments are not permitted in the URL".into());
    }
    if let Some(query) = url.query().filter(|text| !text.is_empty()) {
        invalid(query.to_owned(), "query parameters are not permitted in the URL".into());
    }
}

fn service_faults(service: &Value, faults: &mut Vec<ClientConfigFault>) {
    for field in ["name", "namespace"] {
        match service[field].as_str().unwrap_or_default() {
            "" => faults.push((format!(".service.{field}"), None, String::new())),
            // It becomes a part of the name that TLS verifies.
            text if !is_dns_label(text) => {
                let found = names::label(text);
                let found = found.into_iter().map(|fault| (format!(".service.{field}"), Some(text.into()), fault));
                faults.extend(found);
            }
            _ => {}
        }
    }
    let port = &service["port"];
    if port.as_i64().is_some_and(|port| !(1..=65535).contains(&port)) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        faults.push((".service.port".into(), Some(port.clone()), detail.into()));
    }
    if let Some(path) = service["path"].as_str() {
        let found = path_faults(path).into_iter();
        faults.extend(found.map(|fault| (".service.path".into(), Some(path.into()), fault)));
    }
}

/// What is wrong with the versions of reviews that a webhook takes, of which there are some, in upstream's words.
pub(in crate::apiserver) fn version_faults(list: &Value) -> Vec<ClientConfigFault> {
    let versions = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let of_one = versions.iter().enumerate().flat_map(|(index, version)| {
        let found = if versions[..index].contains(version) {
            vec!["duplicate version".to_owned()]
        } else {
            names::label_1035(version.as_str().unwrap_or_default())
        };
        found.into_iter().map(move |fault| (format!("[{index}]"), Some(version.clone()), fault))
    });
    let unknown = !versions.iter().any(|version| version == "v1");
    let of_all = unknown.then(|| (String::new(), Some(list.clone()), "must include at least one of v1".to_owned()));
    of_one.chain(of_all).collect()
}

/// What is wrong with the path of a service, in upstream's words.
fn path_faults(path: &str) -> Vec<String> {
    if path.is_empty() || path == "/" {
        return Vec::new();
    }
    if path == "//" {
        return vec!["segment[0] may not be empty".into()];
    }
    let Some(rest) = path.strip_prefix('/') else { return vec!["must start with a '/'".into()] };
    let steps = rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate();
    steps
        .flat_map(|(index, step)| match step {
            "" => vec![format!("segment[{index}] may not be empty")],
            step if is_dns_subdomain(step) => Vec::new(),
            step => names::subdomain(step).into_iter().map(|fault| format!("segment[{index}]: {fault}")).collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_url_has_a_scheme_and_a_host() {
        let told = |url: &str| -> Vec<String> {
            faults(&json!({ "url": url })).into_iter().map(|(_, _, detail)| detail.replace(FORM, "")).collect()
        };
        let (scheme, host) = ("'https' is the only allowed URL scheme", "host must be specified");
        for (url, wanted) in [
            ("https://a/b", &[][..]),
            ("", &[scheme, host]),
            ("a/b", &[scheme, host]),
            ("https:a", &[host]),
            ("https://", &[host]),
            ("https:///b", &[host]),
            ("ftp://a", &[scheme]),
        ] {
            assert_eq!(told(url), wanted, "{url}");
        }
        assert!(told("://a")[0].starts_with("url must be a valid URL: "));
    }

    #[test]
    fn versions_of_reviews_are_labels_and_v1_is_among_them() {
        for (versions, wanted) in [
            (json!(["v1", "v2"]), &[][..]),
            (json!(["v1", "v1"]), &[("[1]", "duplicate version")]),
            (json!(["v1beta1"]), &[("", "must include at least one of v1")]),
            (json!(["1", "v1"]), &[("[0]", "a DNS-1035 label must consist of")]),
        ] {
            let found = version_faults(&versions);
            assert_eq!(found.len(), wanted.len(), "{versions}: {found:?}");
            for ((place, _, detail), (at, text)) in found.iter().zip(wanted) {
                assert!(place == at && detail.starts_with(text), "{versions}: {found:?}");
            }
        }
    }

    #[test]
    fn a_path_consists_of_plain_segments() {
        for (path, wanted) in
            [("a", "must start with a '/'"), ("/a//b", "segment[1] may not be empty"), ("/A", "segment[0]: ")]
        {
            assert!(path_faults(path)[0].contains(wanted), "{path}");
        }
        assert!(path_faults("/a/b.c/").is_empty());
    }
}
