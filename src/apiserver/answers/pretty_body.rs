//! Bodies for people: indented JSON and YAML, object by object, so that an answer of any length costs an object's memory.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::json;

use super::indent::Indent;
use super::list_body::{EncodedItems, ListHead};
use super::yaml::{self, Position};
use crate::apiserver::shares::blocking;
use crate::apiserver::shares::response_memory::{self, BodySource, PIECE, ResponseReservation};
use crate::store::{OBJECT_LIMIT, Object};

/// Text of an object in bytes that is written with a line for each member. What is nested deeply becomes a hundred times
/// as large by that; what would be larger is written in one line.
const LINES_MAX: usize = 4 * OBJECT_LIMIT;

/// How the text is made.
enum BodyWriter {
    Indent {
        indent: Indent,
        /// The JSON that is being written.
        json: Vec<u8>,
        /// How much of it was.
        at: usize,
        /// It goes out as it is.
        as_it_is: bool,
    },
    Yaml {
        /// The object that is being written.
        object: Option<(Arc<Object>, yaml::YamlText)>,
    },
}

/// The body of a list, or of one object.
pub(in crate::apiserver) struct PrettyBody {
    parts: EncodedItems,
    writer: BodyWriter,
    /// The next piece.
    piece: Vec<u8>,
    begun: bool,
    /// What comes after the last object, until it was written.
    tail: Option<Vec<u8>>,
    ended: bool,
}

impl PrettyBody {
    /// Indented JSON between a head and what closes it, both of which are empty for an object alone.
    pub fn indented(parts: EncodedItems, head: Vec<u8>, tail: &[u8]) -> Self {
        let writer = BodyWriter::Indent { indent: Indent::default(), json: head, at: 0, as_it_is: false };
        Self { parts, writer, piece: Vec::new(), begun: false, tail: Some(tail.to_vec()), ended: false }
    }

    /// An object as YAML.
    pub fn yaml(parts: EncodedItems) -> Self {
        let writer = BodyWriter::Yaml { object: None };
        Self { parts, writer, piece: Vec::new(), begun: false, tail: Some(Vec::new()), ended: false }
    }

    /// A list as YAML.
    pub fn yaml_list(parts: EncodedItems, kind: &str, api_version: &str, head: &ListHead) -> Self {
        let metadata = head.json();
        let (piece, tail) = if parts.is_empty() {
            let whole = json!({"apiVersion": api_version, "items": [], "kind": kind, "metadata": metadata});
            (yaml::whole(&whole), Vec::new())
        } else {
            // Members of a mapping stand in alphabetical order, as everywhere in YAML here.
            let head = yaml::whole(&json!({ "apiVersion": api_version }));
            (head, yaml::whole(&json!({"kind": kind, "metadata": metadata})))
        };
        Self { piece, tail: Some(tail), ..Self::yaml(parts) }
    }

    /// What is sent. Its length is told when it is short.
    pub fn body(mut self, hold: Option<ResponseReservation>) -> axum::body::Body {
        while self.piece.len() < PIECE && !self.ended && self.work() < blocking::LONG_FROM {
            self.go_a_step();
        }
        if self.ended && self.piece.len() <= response_memory::COUNTED_FROM {
            self.piece.into()
        } else {
            response_memory::body(self, hold)
        }
    }

    /// Bytes that are worked on in the next step.
    fn work(&self) -> usize {
        match &self.writer {
            BodyWriter::Indent { json, at, .. } if *at < json.len() => 0,
            BodyWriter::Yaml { object: Some((shown, _)) } => shown.json_len(),
            BodyWriter::Yaml { object: None } => 0,
            BodyWriter::Indent { .. } => self.parts.next_len(),
        }
    }

    /// Adds something to the piece, or goes on to the next object.
    fn go_a_step(&mut self) {
        match &mut self.writer {
            BodyWriter::Indent { json, at, as_it_is, indent } if *at < json.len() => {
                *at += if *as_it_is {
                    let length = PIECE.min(json.len() - *at);
                    self.piece.extend_from_slice(&json[*at..*at + length]);
                    length
                } else {
                    indent.put(&json[*at..], &mut self.piece, PIECE)
                };
            }
            BodyWriter::Yaml { object: object @ Some(_) } => {
                if let Some((shown, lines)) = object {
                    let mut json = Vec::with_capacity(shown.json_len());
                    self.parts.put(&mut json, shown);
                    if lines.put(&json, &mut self.piece, LINES_MAX) {
                        *object = None;
                    }
                }
            }
            _ => self.go_on(),
        }
    }

    /// To the next object, or to the end.
    fn go_on(&mut self) {
        let first = !std::mem::replace(&mut self.begun, true);
        let next = self.parts.next();
        match &mut self.writer {
            BodyWriter::Indent { indent, json, at, as_it_is } => {
                (*at, *as_it_is) = (0, false);
                let Some(object) = next else {
                    match self.tail.take() {
                        Some(tail) => *json = tail,
                        None => self.ended = true,
                    }
                    return;
                };
                *json = Vec::new();
                if !first {
                    indent.put(b",", &mut self.piece, usize::MAX);
                }
                self.parts.put(json, &object);
                *as_it_is = indent.exceeds(json, LINES_MAX);
                if *as_it_is {
                    indent.begin(&mut self.piece);
                }
            }
            BodyWriter::Yaml { object } => match next {
                Some(next) => {
                    let position = match (self.parts.alone, first) {
                        (true, _) => Position::Alone,
                        (false, true) => Position::First,
                        (false, false) => Position::Next,
                    };
                    *object = Some((next, yaml::YamlText::new(position)));
                }
                None => {
                    self.piece.extend(self.tail.take().unwrap_or_default());
                    self.ended = true;
                }
            },
        }
    }
}

impl Body for PrettyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.piece.len() < PIECE && !self.ended {
            let work = self.work();
            ready!(blocking::poll(cx, work, || self.go_a_step()));
        }
        if self.piece.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.piece).into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.piece.is_empty()
    }
}

impl BodySource for PrettyBody {
    fn retired(&self) -> usize {
        let shown = match &self.writer {
            BodyWriter::Yaml { object: Some((object, _)) } => object.retired(),
            _ => 0,
        };
        self.parts.retired() + shown
    }

    fn own(&self) -> usize {
        let json = match &self.writer {
            BodyWriter::Indent { json, .. } => json.capacity(),
            BodyWriter::Yaml { .. } => 0,
        };
        self.parts.own() + json + self.piece.capacity()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::Value;

    use super::*;
    use crate::apiserver::answers::encoding::tricky;
    use crate::apiserver::answers::list_body::{TAIL, list_head};
    use crate::apiserver::kinds::resource::ServedResource;
    use crate::apiserver::requests::request::Include;
    use crate::apiserver::requests::request::Representation;

    fn resources() -> Vec<Arc<ServedResource>> {
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        let find = |group, version, plural| Arc::clone(registry.find(group, version, plural).unwrap());
        vec![find("metal3.io", "v1alpha1", "hardwaredata"), find("", "v1", "configmaps")]
    }

    fn objects(resource: &ServedResource, values: &[Value]) -> Vec<Arc<Object>> {
        let object = |(number, value): (usize, &Value)| {
            let (version, kind) = (resource.api_version(), &resource.kind);
            let json =
                json!({"apiVersion": version, "kind": kind, "metadata": {"name": number.to_string()}, "spec": value});
            let name = format!("{number:03}");
            let object = Object::new(resource.storage.clone(), "ns".into(), name, 1, json.to_string().as_bytes());
            Arc::new(object.unwrap())
        };
        values.iter().enumerate().map(object).collect()
    }

    fn parts(resource: &Arc<ServedResource>, objects: &[Arc<Object>]) -> EncodedItems {
        EncodedItems::new(Arc::clone(resource), Representation::Json, Include::None, objects.to_vec())
    }

    fn head() -> ListHead {
        ListHead { revision: 7, continue_token: "abc".into(), remaining: Some(3) }
    }

    async fn indented(resource: &Arc<ServedResource>, objects: &[Arc<Object>]) -> String {
        let head = list_head(&resource.list_kind, &resource.api_version(), &head());
        text(PrettyBody::indented(parts(resource, objects), head, TAIL)).await
    }

    async fn yaml(resource: &Arc<ServedResource>, objects: &[Arc<Object>]) -> String {
        let (kind, version) = (&resource.list_kind, resource.api_version());
        text(PrettyBody::yaml_list(parts(resource, objects), kind, &version, &head())).await
    }

    async fn text(lines: PrettyBody) -> String {
        let mut body = lines.body(None);
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() < PIECE + (5 << 18), "{} bytes at once", piece.len());
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn lists_are_written_as_the_libraries_write_the_whole() {
        for resource in resources() {
            let mut long = tricky();
            // Several pieces, cut at odd places.
            long.extend(
                (0..40).map(|number| json!({"text": "line\n\"odd\" ".repeat(number * 97), "in": [[{"a": [number]}]]})),
            );
            for values in [Vec::new(), tricky(), long] {
                let objects = objects(&resource, &values);
                let items: Vec<Value> = objects
                    .iter()
                    .map(|object| {
                        let mut json = Vec::new();
                        parts(&resource, &[]).put(&mut json, object);
                        serde_json::from_slice(&json).unwrap()
                    })
                    .collect();
                let typed = items.first().is_none_or(|item| item.get("kind").is_some());
                assert!(items.is_empty() || typed != resource.core, "items of typed kinds leave that to the list");
                let (kind, version) = (&resource.list_kind, resource.api_version());
                let list = json!({"kind": kind, "apiVersion": version, "metadata": head().json(), "items": items});
                assert_eq!(yaml(&resource, &objects).await, serde_saphyr::to_string(&list).unwrap());
                // The members of a list have an order of their own.
                let pretty = indented(&resource, &objects).await;
                let (begin, rest) = pretty.split_once("\n  \"items\": ").unwrap();
                let (_, whole) = serde_json::to_string_pretty(&json!({ "items": items }))
                    .map(|whole| {
                        whole
                            .split_once("\n  \"items\": ")
                            .map(|(begin, rest)| (begin.to_owned(), rest.to_owned()))
                            .unwrap()
                    })
                    .unwrap();
                assert_eq!(rest, whole);
                assert!(begin.starts_with(&format!(
                    "{{\n  \"kind\": \"{kind}\",\n  \"apiVersion\": \"{version}\",\n  \"metadata\": {{\n"
                )));
                assert_eq!(serde_json::from_str::<Value>(&pretty).unwrap(), list);
                for object in &objects {
                    let alone = || EncodedItems::alone(Arc::clone(&resource), Representation::Json, Arc::clone(object));
                    let pretty = text(PrettyBody::indented(alone(), Vec::new(), b"")).await;
                    assert_eq!(pretty, serde_json::to_string_pretty(&object.value()).unwrap());
                    assert_eq!(
                        text(PrettyBody::yaml(alone())).await,
                        serde_saphyr::to_string(&object.value()).unwrap()
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn what_would_grow_a_hundred_times_is_written_in_one_line() {
        let mut deep = json!(vec![0; OBJECT_LIMIT / 2 - 300]);
        for _ in 0..90 {
            deep = json!([deep]);
        }
        let small = json!({"a": ["b"]});
        let resource = &resources()[0];
        let objects = objects(resource, &[small.clone(), json!({ "deep": deep }), small]);
        let (pretty, yaml) = (indented(resource, &objects).await, yaml(resource, &objects).await);
        for text in [&pretty, &yaml] {
            assert!(text.len() < 2 * OBJECT_LIMIT + PIECE, "{} bytes", text.len());
            assert!(text.lines().count() < 50, "{} lines", text.lines().count());
        }
        let list: Value = serde_json::from_str(&pretty).unwrap();
        assert_eq!(list["items"][1], objects[1].value());
        let lines: Vec<&str> = pretty.lines().filter(|line| line.starts_with("    {")).collect();
        assert_eq!(lines, ["    {", &format!("    {},", objects[1].value()), "    {"]);
        let starts = |text: &str| yaml.lines().filter(|line| line.starts_with(text)).count();
        assert_eq!((starts("- apiVersion:"), starts("- {")), (2, 1), "{}", &yaml[..200]);
    }
}
