//! How an answer is written: JSON for programs, indented JSON or YAML for people.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::status::json_response;

/// The text of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Text {
    /// JSON without spaces.
    #[default]
    Json,
    /// JSON with two spaces for each level.
    Pretty,
    /// YAML.
    Yaml,
}

impl Text {
    /// JSON as the query parameter `pretty` wants it; without one, indented for programs that people read (upstream's
    /// list of them).
    pub fn json(pretty: Option<bool>, headers: &HeaderMap) -> Self {
        let agent = || headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let person = || ["curl", "Wget", "Mozilla/5.0"].iter().any(|name| agent().starts_with(name));
        if pretty.unwrap_or_else(person) { Self::Pretty } else { Self::Json }
    }

    /// Whether JSON goes out as it is.
    pub fn is_plain(self) -> bool {
        self == Self::Json
    }

    /// JSON in this text.
    pub fn render(self, json: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Json => json,
            Self::Pretty => indent(&json),
            Self::Yaml => {
                let value: Value = serde_json::from_slice(&json).unwrap_or_default();
                yaml(&value)
            }
        }
    }

    /// An answer in this text.
    pub fn response(self, code: StatusCode, body: impl Into<Body>) -> Response {
        let mut response = json_response(code, body);
        if self == Self::Yaml {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
        }
        response
    }
}

fn yaml(value: &impl Serialize) -> Vec<u8> {
    // Writing JSON values as YAML into memory does not fail: their keys are strings.
    serde_saphyr::to_string(value).unwrap_or_default().into_bytes()
}

/// A list as YAML. Its items are made one after the other, so that only the text is held.
pub(super) fn yaml_list<I>(kind: &str, api_version: &str, metadata: &Value, items: impl Fn() -> I) -> Vec<u8>
where
    I: Iterator<Item = Value>,
{
    struct Items<F>(F);
    impl<I: Iterator<Item = Value>, F: Fn() -> I> Serialize for Items<F> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut seq = serializer.serialize_seq(None)?;
            for item in (self.0)() {
                seq.serialize_element(&item)?;
            }
            seq.end()
        }
    }
    struct List<'l, F> {
        kind: &'l str,
        api_version: &'l str,
        metadata: &'l Value,
        items: Items<F>,
    }
    impl<I: Iterator<Item = Value>, F: Fn() -> I> Serialize for List<'_, F> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(Some(4))?;
            map.serialize_entry("apiVersion", self.api_version)?;
            map.serialize_entry("items", &self.items)?;
            map.serialize_entry("kind", self.kind)?;
            map.serialize_entry("metadata", self.metadata)?;
            map.end()
        }
    }
    yaml(&List { kind, api_version, metadata, items: Items(items) })
}

/// JSON with a line for each member, without parsing it into values.
fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.resize(out.len() + 2 * depth, b' ');
    };
    let mut bytes = json.iter().copied().filter(|byte| *byte != b'\n').peekable();
    while let Some(byte) = bytes.next() {
        if in_string {
            out.push(byte);
            (in_string, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            continue;
        }
        match byte {
            b'{' | b'[' => {
                out.push(byte);
                if let Some(close @ (b'}' | b']')) = bytes.peek().copied() {
                    out.push(close);
                    bytes.next();
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            b'"' => {
                in_string = true;
                out.push(byte);
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn people_get_lines() {
        let value = json!({"a": [1, {"b": "x\"{,:\\"}], "c": {}, "d": [], "e": "[]", "f": null, "g": true, "h": -1.5});
        let pretty = Text::Pretty.render(value.to_string().into_bytes());
        assert_eq!(String::from_utf8(pretty).unwrap(), serde_json::to_string_pretty(&value).unwrap());
        let text = Text::Yaml.render(value.to_string().into_bytes());
        assert_eq!(serde_saphyr::from_slice::<Value>(&text).unwrap(), value);
        let list = yaml_list("XList", "v1", &json!({"resourceVersion": "1"}), || (0..2).map(|n| json!({ "n": n })));
        let wanted = json!({"kind": "XList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [{"n": 0}, {"n": 1}]});
        assert_eq!(serde_saphyr::from_slice::<Value>(&list).unwrap(), wanted);
        let none = yaml_list("XList", "v1", &json!({}), std::iter::empty);
        assert_eq!(serde_saphyr::from_slice::<Value>(&none).unwrap()["items"], json!([]));
    }

    #[test]
    fn who_gets_lines() {
        for (agent, pretty, wanted) in [
            ("kubectl/v1.36", None, Text::Json),
            ("curl/8.1", None, Text::Pretty),
            ("curl/8.1", Some(false), Text::Json),
            ("", Some(true), Text::Pretty),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            assert_eq!(Text::json(pretty, &headers), wanted, "{agent} {pretty:?}");
        }
    }
}
