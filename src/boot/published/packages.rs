//! Files for nodes, by the name of their Image and their path.
//!
//! | request | answer |
//! |---|---|
//! | `GET /packages/` | names of Images |
//! | `GET /packages/NAME/`, `GET /packages/NAME/FOLDER/` | what is in it |
//! | `GET /packages/NAME/PATH` | a file, with Range |
//!
//! HEAD where there is GET. A list is text, a name in a line and folders with a slash; for who accepts `application/json` it has sizes
//! and checksums. apt asks for `./Packages`: what stands for the folder itself is passed over.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Value, json};

use super::{Asked, Serving, Unsent, below, too_early};
use crate::image::archive::ArchivedFile;
use crate::image::publish::table::Shelf;

/// What a path of a URL may not have.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'\\');

/// Names of a list that are made at once: who takes none of them keeps no more than these.
const PAGE: usize = 256;

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Folder(String),
    File(String, ArchivedFile),
}

impl Entry {
    fn line(&self) -> String {
        match self {
            Self::Folder(name) => format!("{name}/\n"),
            Self::File(name, _) => format!("{name}\n"),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Folder(name) => json!({ "name": format!("{name}/") }),
            Self::File(name, ArchivedFile { size, sha256, .. }) => {
                json!({ "name": name, "size": size, "sha256": sha256 })
            }
        }
    }
}

/// What is right in a folder, whose path is empty or ends with a slash, from a path on: some of it, and where it goes on.
fn page(shelf: &Shelf, folder: &str, mut from: String) -> (Vec<Entry>, String) {
    let mut entries = Vec::new();
    while entries.len() < PAGE
        && let Some((file, place)) = shelf.files.range(from.clone()..).next()
        && let Some(rest) = file.strip_prefix(folder)
    {
        match rest.split_once('/') {
            Some((name, _)) => {
                // The next letter after the slash: behind all that is in that folder.
                from = format!("{folder}{name}0");
                entries.push(Entry::Folder(name.to_owned()));
            }
            None => {
                from = format!("{file}\0");
                entries.push(Entry::File(rest.to_owned(), place.clone()));
            }
        }
    }
    (entries, from)
}

pub(super) async fn answer(State(serving): State<Serving>, request: Request) -> Response {
    let asked = Asked::of(&serving, request);
    if asked.method != Method::GET && asked.method != Method::HEAD {
        return (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")], "packages are read only\n").into_response();
    }
    let Some(path) = below(&asked.path, "/packages") else { return not_found() };
    let Some(table) = serving.table() else {
        return too_early("the appliance does not know yet what is published\n".into_response());
    };
    let is_folder = asked.path.ends_with('/') || path.is_empty();
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let Some((name, parts)) = parts.split_first() else {
        let names: Vec<Entry> = table.names().map(|name| Entry::Folder(name.to_owned())).collect();
        return listed(&asked, futures::stream::iter([names]));
    };
    let Some(shelf) = table.packages(name) else { return not_found() };
    let file = parts.join("/");
    if let Some((found, place)) = shelf.file(&file).filter(|_| !is_folder) {
        let kind = [(CONTENT_TYPE, media_type(&file))];
        return match serving.send(&asked, &found, &place.sha256, &kind).await {
            Ok(answer) => answer,
            Err(Unsent::Busy(message)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{message}\n")).into_response(),
        };
    }
    let folder = if file.is_empty() { file } else { file + "/" };
    if page(shelf, &folder, folder.clone()).0.is_empty() {
        return not_found();
    }
    if !is_folder {
        // Names in a list are beside it.
        let to = utf8_percent_encode(&format!("/packages/{name}/{folder}"), ESCAPED).to_string();
        let Ok(to) = HeaderValue::try_from(to) else { return not_found() };
        return (StatusCode::MOVED_PERMANENTLY, [(LOCATION, to)]).into_response();
    }
    let name = (*name).to_owned();
    let pages = futures::stream::unfold(folder.clone(), move |from| {
        let next = table.packages(&name).map(|shelf| page(shelf, &folder, from));
        async move { next.filter(|(entries, _)| !entries.is_empty()) }
    });
    listed(&asked, pages)
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "there is no such file here\n").into_response()
}

/// A list, made as it is taken.
fn listed(asked: &Asked, pages: impl Stream<Item = Vec<Entry>> + Send + 'static) -> Response {
    let accepted = asked.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_json = accepted.into_iter().any(|accepted| accepted.contains("application/json"));
    if is_json {
        let mut before = "";
        let items = pages.map(move |entries| {
            let item = |entry: &Entry| format!("{}{}", std::mem::replace(&mut before, ","), entry.json());
            entries.iter().map(item).collect::<String>()
        });
        let end = futures::stream::iter(["]\n".to_owned()]);
        let text =
            futures::stream::iter(["[".to_owned()]).chain(items).chain(end).map(Ok::<_, std::convert::Infallible>);
        return ([(CONTENT_TYPE, "application/json")], Body::from_stream(text)).into_response();
    }
    let lines = pages.map(|entries| entries.iter().map(Entry::line).collect::<String>());
    let lines = Body::from_stream(lines.map(Ok::<_, std::convert::Infallible>));
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], lines).into_response()
}

/// Nothing here is a page: what a browser is given it keeps, and does not run.
fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("deb") => "application/vnd.debian.binary-package",
        Some("rpm") => "application/x-rpm",
        Some("gz" | "tgz") => "application/gzip",
        Some("xz") => "application/x-xz",
        Some("zst") => "application/zstd",
        Some("txt" | "asc" | "sha256") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
