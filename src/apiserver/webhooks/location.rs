//! What a `clientConfig` may say, of webhooks for admission and of those that convert. Pure.

use reqwest::Url;
use serde_json::Value;

use super::super::names;
use super::super::selectors::{is_dns_label, is_dns_subdomain};

/// A field below `clientConfig`, its value, and what is wrong with it; without a value it is missing.
pub(in crate::apiserver) type Fault = (String, Option<Value>, String);

/// What is wrong with it, in upstream's words. Its `caBundle` may be filled in later, and is judged when it is used.
pub(in crate::apiserver) fn faults(config: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    match (config["url"].as_str(), config.get("service").filter(|service| service.is_object())) {
        (Some(url), None) => url_faults(url, &mut faults),
        (None, Some(service)) => service_faults(service, &mut faults),
        _ => faults.push((String::new(), None, "exactly one of url or service is required".into())),
    }
    faults
}

fn url_faults(text: &str, faults: &mut Vec<Fault>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let mut invalid = |value: String, detail: String| faults.push((".url".into(), Some(value.into()), detail));
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => {
            faults.push((".url".into(), None, format!("url must be a valid URL: {error}{FORM}")));
            return;
        }
    };
    if url.scheme() != "https" {
        invalid(url.scheme().to_owned(), format!("'https' is the only allowed URL scheme{FORM}"));
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

fn service_faults(service: &Value, faults: &mut Vec<Fault>) {
    for (field, words) in [("name", "service name is required"), ("namespace", "service namespace is required")] {
        match service[field].as_str().unwrap_or_default() {
            "" => faults.push((format!(".service.{field}"), None, words.into())),
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
    use super::*;

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
