//! Response formats: JSON for programs, indented JSON or YAML for people.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::Value;

use super::indent::Indent;
use super::status::json_response;
use super::yaml;

/// The text of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::apiserver) enum ContentEncoding {
    /// JSON without spaces.
    #[default]
    Json,
    /// JSON with two spaces for each level.
    Pretty,
    /// YAML.
    Yaml,
}

impl ContentEncoding {
    /// JSON as the query parameter `pretty` wants it; without one, indented for programs that people read (upstream's
    /// list of them).
    pub fn json(pretty: Option<bool>, headers: &HeaderMap) -> Self {
        let agent = || headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let person = || ["curl", "Wget", "Mozilla/5.0"].iter().any(|name| agent().starts_with(name));
        if pretty.unwrap_or_else(person) { Self::Pretty } else { Self::Json }
    }

    /// JSON in this text, for what is small.
    pub fn render(self, json: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Json => json,
            Self::Pretty => {
                let mut lines = Vec::with_capacity(json.len() * 2);
                Indent::default().put(&json, &mut lines, usize::MAX);
                lines
            }
            Self::Yaml => {
                let value: Value = serde_json::from_slice(&json).unwrap_or_default();
                yaml::whole(&value)
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

/// Objects whose text is easily written wrongly, for tests.
#[cfg(test)]
pub(super) fn tricky() -> Vec<Value> {
    use serde_json::json;

    let texts = [
        "",
        " ",
        "yes",
        "null",
        "~",
        "1",
        "-1.5e3",
        "0x1f",
        "1_000",
        "2026-01-01",
        "12:30",
        "on",
        "- a",
        "a: b",
        "#",
        "a #b",
        "'",
        "\"",
        "\\",
        "\\\"{[,:",
        "&a",
        "*a",
        "!a",
        "%a",
        "@a",
        "`",
        "|",
        ">",
        "?",
        "---",
        "...",
        "{}",
        "[]",
        "\t",
        "a\tb",
        "one\ntwo",
        "one\ntwo\n",
        "\n",
        "\n\n",
        "  one\n two\n",
        "one\n\n\ntwo\n\n",
        "trailing \nspace ",
        "a\r\nb",
        "\0\u{7}\u{7f}",
        "\u{85}\u{2028}\u{2029}\u{feff}",
        "Zürich 東京 🚀",
        "\u{fffe}",
        "é\u{301}",
    ];
    let long = "many words ".repeat(50);
    let mut all: Vec<Value> = texts.iter().map(|text| json!({"text": text, "in": [text, {"deep": text}]})).collect();
    all.extend(texts.iter().map(|key| json!({ *key: 1, "in": [{ *key: [] }] })));
    all.extend([
        json!({}),
        json!({"a": {}, "b": [], "c": [[]], "d": [{}], "e": {"f": {}}, "g": [[], {}, [[{}]]], "h": null}),
        json!({"a": [1, [2, [3, [4]]]], "b": [[[{"c": [{"d": 1}, 2]}]]], "e": [{"f": [{"g": {}}], "h": "i"}, "j"]}),
        json!({"n": [0, -1, 1.5, -0.0, 1e300, 1e-7, u64::MAX, i64::MIN, 100_000_000_000_000_000_000.0], "t": [true, false, null]}),
        json!({"long": long, "lines": format!("{long}\n{long}\n"), "wide": "A".repeat(5000), "k".repeat(2000): {"l": 1}}),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn people_get_lines() {
        let value = json!({"a": [1, {"b": "x\"{,:\\"}], "c": {}, "d": [], "e": "[]", "f": null, "g": true, "h": -1.5});
        let pretty = ContentEncoding::Pretty.render(value.to_string().into_bytes());
        assert_eq!(String::from_utf8(pretty).unwrap(), serde_json::to_string_pretty(&value).unwrap());
        let text = ContentEncoding::Yaml.render(value.to_string().into_bytes());
        assert_eq!(serde_saphyr::from_slice::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn who_gets_lines() {
        for (agent, pretty, wanted) in [
            ("kubectl/v1.36", None, ContentEncoding::Json),
            ("curl/8.1", None, ContentEncoding::Pretty),
            ("curl/8.1", Some(false), ContentEncoding::Json),
            ("", Some(true), ContentEncoding::Pretty),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            assert_eq!(ContentEncoding::json(pretty, &headers), wanted, "{agent} {pretty:?}");
        }
    }
}
