//! Tests of the parsers with hostile input: a value or an error, never a panic.

use proptest::prelude::*;

use super::super::objects::selectors::ObjectSelector;
use super::super::requests::{body, protobuf, request};
use super::super::writing::patch::RequestPatch;
use super::*;
use crate::jsonpath::{Path, Template};

/// Text from the letters that mean something to the parsers.
const TEXT: &str = r#"[a-z0-9 .,=!<>()\[\]{}'"@?*&%/\\:;~$é-]{0,40}"#;

proptest! {
    #[test]
    fn texts_never_panic(text in TEXT) {
        static REGISTRY: std::sync::LazyLock<ResourceRegistry> = std::sync::LazyLock::new(|| crate::apiserver::kinds::built_in::registry(&[]).unwrap());
        let registry = &*REGISTRY;
        let events = registry.find("", "v1", "events").unwrap();
        for (labels, fields) in [(text.as_str(), ""), ("", text.as_str())] {
            if let Ok(selector) = ObjectSelector::parse(events, labels, fields) {
                let text = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
                selector.matches(&crate::store::Object::new("/x".into(), String::new(), "n".into(), 1, text.as_bytes()).unwrap());
            }
        }
        let object = json!({"a": [{"b": 1}, "c"]});
        if let Ok(path) = Path::parse(&text) {
            assert_eq!(path.first(&object), path.find(&object).first().copied());
        }
        if let Ok(template) = Template::parse(&format!("{{{text}}}")) {
            template.render(&object);
        }
        request::RequestRoute::parse(&format!("/api/v1/{text}"));
        if let Ok(uri) = format!("/x?{}", text.replace([' ', '"', '<', '>', '\\', 'é', '{', '}'], "+")).parse() {
            request::Params::parse(&uri).ok();
        }
        let mut headers = HeaderMap::new();
        if let Ok(value) = text.parse() {
            headers.insert("accept", value);
            request::negotiate(&headers, None).ok();
        }
        body::parse_yaml(text.as_bytes()).ok();
        body::parse_json(text.as_bytes()).ok();
    }

    #[test]
    fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        body::parse_yaml(&bytes).ok();
        body::parse_json(&bytes).ok();
        protobuf::parse(&[b"k8s\0", bytes.as_slice()].concat()).ok();
        UserIdentity::from_certificate(&bytes).ok();
    }

    #[test]
    fn patches_never_panic(path in "(/[ab0-2~-]{0,3}){0,3}", from in "(/[ab0-2-]{0,2}){0,3}", op in "add|remove|replace|move|copy|test") {
        static REGISTRY: std::sync::LazyLock<ResourceRegistry> = std::sync::LazyLock::new(|| crate::apiserver::kinds::built_in::registry(&[]).unwrap());
        let registry = &*REGISTRY;
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let operations = json!([{"op": op, "path": path, "from": from, "value": {"a": [1]}}]).to_string();
        if let Ok(patch) = RequestPatch::parse(secrets, "application/json-patch+json", operations.as_bytes()) {
            patch.apply(secrets, &mut json!({"a": [1, {"b": 2}], "b": {"a": 0}})).ok();
        }
    }
}

#[tokio::test]
async fn a_request_ends_in_time() {
    let rig = Rig::new().await;
    // A revision that is still to come is waited for, for three seconds.
    let late = rig.get(&format!("{SECRETS}?resourceVersion=999999999&timeout=50ms")).await.expect(504);
    assert_eq!(
        (late["reason"].as_str(), late["message"].as_str()),
        (Some("Timeout"), Some("request did not complete within requested timeout - context deadline exceeded"))
    );
    rig.get(&format!("{SECRETS}?timeout=soon")).await.expect(400);
    // A watch says how long it is by itself.
    let watched = rig.get(&format!("{SECRETS}?watch=true&timeoutSeconds=1&timeout=1ms")).await;
    assert_eq!((watched.code, watched.text.as_str()), (200, ""));
}

#[tokio::test]
async fn who_is_refused_before_the_body_is_told_that_the_connection_ends() {
    let rig = Rig::new().await;
    let send = async |method: &str, path: &str, version| {
        let request = http::Request::builder().method(method).uri(path).version(version);
        let answer = rig.send(None, request, "{}").await;
        (answer.code, answer.headers.get("connection").map(|value| value.to_str().unwrap().to_owned()))
    };
    let close = Some("close".to_owned());
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(send(method, SECRETS, http::Version::HTTP_11).await, (401, close.clone()), "{method}");
        assert_eq!(send(method, SECRETS, http::Version::HTTP_2).await, (401, None), "{method}");
    }
    // Nothing is left of what has no body, and nothing of a body that was read.
    assert_eq!(send("GET", SECRETS, http::Version::HTTP_11).await, (401, None));
    let made = http::Request::post(SECRETS).version(http::Version::HTTP_11);
    let answer = rig.send(admin(), made, secret("a", &json!({})).to_string()).await;
    assert!(answer.code == 201 && answer.headers.get("connection").is_none());
}
