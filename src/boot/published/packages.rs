//! Files for nodes, by the name of their Image and their path.
//!
//! | request | answer |
//! |---|---|
//! | `GET /packages/` | names of Images |
//! | `GET /packages/NAME/`, `GET /packages/NAME/FOLDER/` | what is in it |
//! | `GET /packages/NAME/PATH` | a file, with Range |
//!
//! HEAD where there is GET. A list is text, a name in a line and folders with a slash; for who accepts `application/json` it has sizes
//! and checksums. It has a number of names at most: the rest is where the header `Link` says (`?n=&last=`), and in text a line behind the
//! names. apt asks for `./Packages`: what stands for the folder itself is passed over.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Value, json};

use super::{PublishedRequest, PublishedService, TagPage, UNREAD, UnsentReason, below, too_early};
use crate::image::archive::ArchivedFile;
use crate::image::publish::LibraryEntry;
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

/// Most names of a list at once: who takes nothing of it keeps no more than these.
const NAMES_MAX: usize = 256;

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ShelfEntry {
    Folder(String),
    File(String, ArchivedFile),
}

impl ShelfEntry {
    fn name(&self) -> String {
        match self {
            Self::Folder(name) => format!("{name}/"),
            Self::File(name, _) => name.clone(),
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

/// What is right in a folder, whose path is empty or ends with a slash: some of it, and whether there is more.
fn entries(shelf: &Shelf, folder: &str, page: &TagPage) -> (Vec<ShelfEntry>, bool) {
    let mut entries = Vec::new();
    let mut from = match page.last.strip_suffix('/') {
        // The next letter after the slash: behind all that is in that folder.
        Some(name) => format!("{folder}{name}0"),
        None if page.last.is_empty() => folder.to_owned(),
        None => format!("{folder}{}\0", page.last),
    };
    while entries.len() < page.most
        && let Some((rest, place)) = shelf.first_in(folder, &from)
    {
        match rest.split_once('/') {
            Some((name, _)) => {
                from = format!("{folder}{name}0");
                entries.push(ShelfEntry::Folder(name.to_owned()));
            }
            None => {
                from = format!("{folder}{rest}\0");
                entries.push(ShelfEntry::File(rest.to_owned(), place.clone()));
            }
        }
    }
    let is_more = shelf.first_in(folder, &from).is_some();
    (entries, is_more)
}

pub(super) async fn answer(State(serving): State<PublishedService>, request: Request) -> Response {
    let asked = PublishedRequest::of(&serving, request);
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
        let Some(page) = TagPage::of(&asked.query, NAMES_MAX) else { return no_page() };
        let mut names = table.names_after(page.last.trim_end_matches('/'));
        let some = names.by_ref().take(page.most).map(|name| ShelfEntry::Folder(name.to_owned())).collect();
        return listed(&asked, "/packages/", &page, (some, names.next().is_some()));
    };
    let Some(shelf) = table.packages(name).cloned() else { return not_found() };
    // Nothing else is held while something is read, or waits for its turn.
    drop(table);
    let file = parts.join("/");
    if let Some((found, sha256)) = shelf.file(&file).filter(|_| !is_folder) {
        drop(shelf);
        return sent(&serving, &asked, found, &sha256, &file).await;
    }
    let folder = if file.is_empty() { file } else { file + "/" };
    if shelf.first_in(&folder, &folder).is_none() {
        return not_found();
    }
    // Names in a list are beside it.
    let at = utf8_percent_encode(&format!("/packages/{name}/{folder}"), ESCAPED).to_string();
    if !is_folder {
        let Ok(at) = HeaderValue::try_from(at) else { return not_found() };
        return (StatusCode::MOVED_PERMANENTLY, [(LOCATION, at)]).into_response();
    }
    let Some(page) = TagPage::of(&asked.query, NAMES_MAX) else { return no_page() };
    listed(&asked, &at, &page, entries(&shelf, &folder, &page))
}

async fn sent(
    serving: &PublishedService,
    asked: &PublishedRequest,
    found: LibraryEntry,
    sha256: &str,
    file: &str,
) -> Response {
    let unsent = match serving.send(asked, found, sha256, &[(CONTENT_TYPE, media_type(file))]).await {
        Ok(answer) => return answer,
        Err(unsent) => unsent,
    };
    too_early(match unsent {
        UnsentReason::Busy(message) => format!("{message}\n").into_response(),
        UnsentReason::Unread => format!("{UNREAD}\n").into_response(),
    })
}

fn no_page() -> Response {
    (StatusCode::BAD_REQUEST, "n is no number\n").into_response()
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "there is no such file here\n").into_response()
}

/// A part of a list, and where the rest is; `at` is where the list is.
fn listed(asked: &PublishedRequest, at: &str, page: &TagPage, (entries, is_more): (Vec<ShelfEntry>, bool)) -> Response {
    let last = entries.last().filter(|_| is_more).map(ShelfEntry::name);
    let accepted = asked.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_json = accepted.into_iter().any(|accepted| accepted.contains("application/json"));
    let (kind, text) = if is_json {
        let items: Vec<Value> = entries.iter().map(ShelfEntry::json).collect();
        ("application/json", format!("{}\n", Value::from(items)))
    } else {
        let next = last.iter().map(|last| page.after(last));
        let lines = entries.iter().map(ShelfEntry::name).chain(next).map(|line| line + "\n");
        ("text/plain; charset=utf-8", lines.collect())
    };
    let mut answer = ([(CONTENT_TYPE, kind)], text).into_response();
    answer.headers_mut().extend(last.and_then(|last| page.link(at, &last)));
    answer
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
