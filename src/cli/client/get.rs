//! `get` and `watch`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::Write;

use anyhow::bail;
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::Value;

use super::connect::{ClientSession, ServerArgs};
use super::describe::last_seen;
use super::errors::ApiRequestError;
use super::names::{self, NameSelection};
use super::output::{self, ClientOutput};
use super::own_table::OwnColumn;
use super::table::{self, Show};
use super::terminal::{Terminal, When};
use super::types::{ServedType, ServedTypes};
use super::{inventory, missing, own_table, request};
use crate::cli::failure::{CommandFailure, complain, plain, usage};
use crate::jsonpath::Path;

/// How long a watch may end at once, again and again, before it is an error.
const RESTARTS: u32 = 5;

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Types are those of the server, by any name that kubectl takes: hosts, hardwaredata, images, dataimages, networks, reservations, dhcpleases, \
bootintents, secrets, namespaces, events, clusters, machines, and those of your own definitions. `slipway types` lists them.

Examples:
  slipway get hosts                               every host of the namespace
  slipway get hosts -A -o wide                    of all namespaces, with every column
  slipway get host web-1 -o yaml                  one, as it is stored
  slipway get host/web-1 secret/web-1-bmc         of several types
  slipway get hosts,images                        of two types
  slipway get hardwaredata -o wide                what inspection found in each machine
  slipway get hosts --watch                       and every change from now on; of one type
  slipway get hosts -l rack=a --sort-by=.metadata.creationTimestamp
  slipway get hosts -o custom-columns=NAME:.metadata.name,POWER:.status.poweredOn
  slipway get hosts -l rack=a -o ansible-yaml > hosts.yaml     an inventory for Ansible
  slipway get hosts -o jsonpath='{range .items[*]}{.metadata.name}{\"\\n\"}{end}'")]
pub(in crate::cli) struct GetArgs {
    /// TYPE, TYPE NAME…, TYPE1,TYPE2 or TYPE/NAME…
    #[arg(value_name = "TYPE[/NAME]")]
    what: Vec<String>,
    /// Output format: wide, json, yaml, name, jsonpath=…, custom-columns=…; of hosts ansible, ansible-yaml
    #[arg(long, short, value_name = "FORM", default_value = "table", hide_default_value = true)]
    output: ClientOutput,
    /// Objects of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Only objects with these labels: a=b,c!=d,e in (f,g)
    #[arg(long, short = 'l', value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,
    /// Only objects with these fields: metadata.name=web-1
    #[arg(long, value_name = "FIELDS", default_value = "", hide_default_value = true)]
    field_selector: String,
    /// Keep printing changes
    #[arg(long, short)]
    watch: bool,
    /// Print only changes from now on
    #[arg(long)]
    watch_only: bool,
    /// With --watch: print whether each object was added, modified or deleted
    #[arg(long)]
    output_watch_events: bool,
    /// Sort by a field: .metadata.creationTimestamp
    #[arg(long, value_name = "PATH", value_parser = path)]
    sort_by: Option<Path>,
    /// Add columns for these labels
    #[arg(long, short = 'L', value_name = "LABEL", value_delimiter = ',')]
    label_columns: Vec<String>,
    /// Add a column with all labels
    #[arg(long)]
    show_labels: bool,
    /// Do not print the headings
    #[arg(long)]
    no_headers: bool,
    /// Also print metadata.managedFields in json and yaml
    #[arg(long)]
    show_managed_fields: bool,
    /// Do not fail when an object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    /// Whether states have colours
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    color: When,
    #[command(flatten)]
    server: ServerArgs,
}

fn path(text: &str) -> Result<Path, String> {
    Path::parse(text).map_err(|error| error.to_string())
}

/// What to ask for: a type, and one name or all.
struct ResourceQuery<'t> {
    of: &'t ServedType,
    name: Option<String>,
    /// The columns of a table of the command's own, instead of the server's.
    own: Option<&'static [OwnColumn]>,
}

pub(super) async fn run(mut options: GetArgs, watch: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    options.watch |= watch || options.watch_only;
    if options.what.is_empty() {
        return Err(usage("name a type, as in `slipway get hosts`; `slipway types` lists those of the server"));
    }
    let selections = names::parse(&options.what).map_err(usage)?;
    let session = options.server.connect().await?;
    let types = session.types().await?;
    let asked = asked(&selections, &types)?;
    if asked.iter().any(|one| one.name.is_some()) && !(options.selector.is_empty() && options.field_selector.is_empty())
    {
        return Err(usage("a name cannot be combined with a selector"));
    }
    if asked.iter().any(|one| one.name.is_some()) && options.all_namespaces {
        return Err(usage("a name cannot be combined with -A: names are unique only within a namespace"));
    }
    if let ClientOutput::Ansible(_) = options.output {
        inventory::check(asked.iter().map(|one| one.of), options.watch)?;
    }
    let get = Get { session: &session, options: &options };
    if options.watch {
        let [one] = asked.as_slice() else { return Err(usage("--watch follows one type, or one object")) };
        return get.watch(one, out).await;
    }
    match options.output {
        ClientOutput::Table { .. } => get.tables(&asked, out).await,
        _ => get.objects(&asked, out).await,
    }
}

fn asked<'t>(selections: &[NameSelection], types: &'t ServedTypes) -> anyhow::Result<Vec<ResourceQuery<'t>>> {
    let mut all = Vec::new();
    for selection in selections {
        for of in types.find(&selection.word)? {
            let own = own_table::columns(&selection.word, of);
            if selection.names.is_empty() {
                all.push(ResourceQuery { of, name: None, own });
            }
            all.extend(selection.names.iter().map(|name| ResourceQuery { of, name: Some(name.clone()), own }));
        }
    }
    Ok(all)
}

struct Get<'g> {
    session: &'g ClientSession,
    options: &'g GetArgs,
}

impl Get<'_> {
    fn namespace(&self) -> Option<&str> {
        (!self.options.all_namespaces).then_some(self.session.namespace.as_str())
    }

    fn show(&self, of: &ServedType, many: bool) -> Show {
        let wide = self.options.output == ClientOutput::Table { wide: true };
        let terminal = Terminal::standard_output(self.options.color);
        // Who wants every column gets them whole.
        let width = terminal.width.filter(|_| !wide);
        Show {
            terminal: Terminal { width, ..terminal },
            wide,
            namespaces: self.options.all_namespaces && of.namespaced,
            label_columns: self.options.label_columns.clone(),
            labels: self.options.show_labels,
            no_headers: self.options.no_headers,
            prefix: if many { format!("{}/", of.one()) } else { String::new() },
            events: self.options.output_watch_events,
            follows: self.options.watch,
        }
    }

    /// Reads what is asked for; `each` gets every page, or the one object.
    async fn read(
        &self,
        one: &ResourceQuery<'_>,
        accept: &str,
        mut each: impl FnMut(Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<String> {
        let whole = one.own.is_some() || self.options.sort_by.is_some() || is_events(one.of);
        let include = if accept == request::TABLE && whole { "Object" } else { "" };
        let Some(name) = &one.name else {
            let query = [
                ("labelSelector", self.options.selector.as_str()),
                ("fieldSelector", &self.options.field_selector),
                ("includeObject", include),
            ];
            return self.session.pages(&one.of.path(self.namespace(), None), &query, accept, each).await;
        };
        let path = one.of.path(self.namespace(), Some(name));
        match self.session.get(&path, &[("includeObject", include)], accept).await {
            Ok(value) => {
                let revision = value["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
                each(value)?;
                Ok(revision)
            }
            Err(error) if error.is_not_found() => {
                bail!("{}", missing::explain(self.session, one.of, name).await)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads all; says what failed, and goes on with the rest.
    async fn read_all<'t>(
        &self,
        asked: &[ResourceQuery<'t>],
        accept: &str,
        mut each: impl FnMut(&'t ServedType, Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut failed = None;
        for one in asked {
            let shown = |value| match one.own.filter(|_| accept == request::TABLE) {
                Some(columns) => own_table::table(as_table(value), columns, Timestamp::now()),
                None => value,
            };
            if let Err(error) = self.read(one, accept, |value| each(one.of, shown(value))).await {
                let unreachable = matches!(error.downcast_ref(), Some(ApiRequestError::Unreachable(_)));
                if unreachable || asked.len() == 1 && !self.options.ignore_not_found {
                    return Err(error);
                }
                let gone = error.downcast_ref::<ApiRequestError>().is_none();
                if !(gone && self.options.ignore_not_found) {
                    complain(error);
                    failed = Some(CommandFailure::Reported);
                }
            }
        }
        failed.map_or(Ok(()), |failure| Err(failure.into()))
    }

    async fn tables(&self, asked: &[ResourceQuery<'_>], out: &mut dyn Write) -> anyhow::Result<()> {
        let mut kinds: Vec<String> = asked.iter().map(|one| one.of.qualified()).collect();
        kinds.dedup();
        let many = kinds.len() > 1;
        // Pages and objects of one type make one table.
        let mut tables: Vec<(&ServedType, Vec<Value>)> = Vec::new();
        let read = self.read_all(asked, request::TABLE, |of, value| {
            let table = as_table(value);
            match tables.last_mut().filter(|(last, _)| *last == of) {
                Some((_, pages)) => pages.push(table),
                None => tables.push((of, vec![table])),
            }
            Ok(())
        });
        // What was found is printed even when something else failed.
        let read = read.await;
        let mut text = String::new();
        for (of, pages) in tables {
            let mut whole = pages[0].clone();
            let rows = pages.into_iter().flat_map(|mut page| match page["rows"].take() {
                Value::Array(rows) => rows,
                _ => Vec::new(),
            });
            let mut rows: Vec<Value> = rows.collect();
            match &self.options.sort_by {
                Some(path) => rows.sort_by(|a, b| order(path, &a["object"], &b["object"])),
                None if is_events(of) => rows.sort_by_key(|row| last_seen(&row["object"]).to_owned()),
                None => {}
            }
            whole["rows"] = rows.into();
            let lines = table::TablePrinter::new(self.show(of, many)).lines(&whole, "");
            if !text.is_empty() && !lines.is_empty() {
                text.push('\n');
            }
            text += &lines;
        }
        out.write_all(text.as_bytes())?;
        if text.is_empty() && read.is_ok() && !self.options.ignore_not_found {
            eprintln!("{}", plain(&self.nothing(asked)));
        }
        read
    }

    fn nothing(&self, asked: &[ResourceQuery<'_>]) -> String {
        match self.namespace().filter(|_| asked.iter().any(|one| one.of.namespaced)) {
            Some(namespace) => format!("No resources found in {namespace} namespace."),
            None => "No resources found".into(),
        }
    }

    async fn objects(&self, asked: &[ResourceQuery<'_>], out: &mut dyn Write) -> anyhow::Result<()> {
        let mut objects = Vec::new();
        let alone = asked.len() == 1 && asked[0].name.is_some();
        let read = self.read_all(asked, request::JSON, |of, value| {
            objects.extend(items(of, value));
            Ok(())
        });
        let read = read.await;
        if let Some(path) = &self.options.sort_by {
            objects.sort_by(|a, b| order(path, a, b));
        }
        if let ClientOutput::Ansible(language) = self.options.output {
            // One that lacks hosts without a word would be worse than none.
            read?;
            return inventory::print(&objects, self.options.all_namespaces, language, out);
        }
        if read.is_ok() || !objects.is_empty() {
            let options = self.options;
            let mut printer =
                output::ObjectPrinter::new(options.output.clone(), options.no_headers, options.show_managed_fields);
            if !(alone && objects.is_empty()) {
                printer.all(objects, alone, out)?;
            }
        }
        read
    }

    async fn watch(&self, one: &ResourceQuery<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut printer = PrintedObjects {
            rows: table::TablePrinter::new(self.show(one.of, false)),
            objects: output::ObjectPrinter::new(
                self.options.output.clone(),
                self.options.no_headers,
                self.options.show_managed_fields,
            ),
            table: matches!(self.options.output, ClientOutput::Table { .. }),
            own: one.own,
            events: self.options.output_watch_events,
            seen: HashMap::new(),
        };
        let accept = if printer.table { request::TABLE } else { request::JSON };
        let fields = match &one.name {
            Some(name) => format!("metadata.name={name}"),
            None => self.options.field_selector.clone(),
        };
        let path = one.of.path(self.namespace(), None);
        let mut quiet = self.options.watch_only;
        let mut restarts = 0;
        loop {
            // Of one object too: a single object's revision is older than the present, and may be forgotten.
            let query = [
                ("labelSelector", self.options.selector.as_str()),
                ("fieldSelector", fields.as_str()),
                ("includeObject", if printer.table && one.own.is_some() { "Object" } else { "" }),
            ];
            let mut pages = Vec::new();
            let mut revision = self
                .session
                .pages(&path, &query, accept, |page| {
                    pages.push(page);
                    Ok(())
                })
                .await?;
            let found = pages
                .iter()
                .any(|page| ["rows", "items"].iter().any(|f| page[f].as_array().is_some_and(|a| !a.is_empty())));
            if let Some(name) = one.name.as_ref().filter(|_| !found && printer.seen.is_empty()) {
                bail!("{}", missing::explain(self.session, one.of, name).await);
            }
            for page in pages {
                printer.page(one.of, page, quiet, out)?;
            }
            quiet = false;
            loop {
                let from = [query[0], query[1], query[2], ("resourceVersion", revision.as_str())];
                let events = match self.session.watch(&path, &from, accept).await {
                    Err(error) if error.is_expired() => break,
                    events => events?,
                };
                let mut events = std::pin::pin!(events);
                let mut some = false;
                let mut expired = false;
                let mut last = revision.clone();
                while let Some(event) = events.next().await {
                    let event = match event {
                        Err(error) if error.is_expired() => {
                            expired = true;
                            break;
                        }
                        // The connection broke: it is made again, and fails loudly if there is no server.
                        Err(ApiRequestError::Unreachable(_)) => break,
                        event => event?,
                    };
                    some = true;
                    if let Some(at) = printer.event(event, out)? {
                        last = at;
                    }
                }
                revision = last;
                if expired {
                    break;
                }
                restarts = if some { 0 } else { restarts + 1 };
                if restarts > RESTARTS {
                    bail!("the server ends every watch at once");
                }
            }
        }
    }
}

/// What a watch printed, so that nothing is printed twice after it had to begin again.
struct PrintedObjects {
    rows: table::TablePrinter,
    objects: output::ObjectPrinter,
    table: bool,
    own: Option<&'static [OwnColumn]>,
    events: bool,
    /// Revision of each object, by namespace and name.
    seen: HashMap<(String, String), String>,
}

impl PrintedObjects {
    /// A page of a list: prints what is new or has changed.
    fn page(&mut self, of: &ServedType, page: Value, quiet: bool, out: &mut dyn Write) -> anyhow::Result<()> {
        if !self.table {
            for object in items(of, page) {
                if self.note(&object) && !quiet {
                    self.objects.next(object, self.events.then_some("ADDED"), out)?;
                }
            }
            return Ok(());
        }
        let mut table = as_table(page);
        if let Some(rows) = table["rows"].as_array_mut() {
            rows.retain(|row| self.note(&row["object"]) && !quiet);
        }
        self.print_rows(&table, "ADDED", out)
    }

    /// An event of a watch; the revision to go on from.
    fn event(&mut self, mut event: Value, out: &mut dyn Write) -> anyhow::Result<Option<String>> {
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        let object = event["object"].take();
        let revision = |metadata: &Value| metadata["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        if kind == "BOOKMARK" {
            let inside = object["rows"][0]["object"].get("metadata").is_some();
            return Ok(if inside { revision(&object["rows"][0]["object"]) } else { revision(&object) });
        }
        if !self.table || object["kind"] != "Table" {
            let at = revision(&object);
            self.note(&object);
            if self.table {
                self.print_rows(&table::of_objects(&[object]), &kind, out)?;
            } else {
                self.objects.next(object, self.events.then_some(kind.as_str()), out)?;
            }
            return Ok(at);
        }
        let rows = object["rows"].as_array().map_or(&[][..], Vec::as_slice);
        for row in rows {
            self.note(&row["object"]);
        }
        let at = rows.last().and_then(|row| revision(&row["object"])).or_else(|| revision(&object));
        self.print_rows(&object, &kind, out)?;
        Ok(at)
    }

    fn print_rows(&mut self, table: &Value, kind: &str, out: &mut dyn Write) -> anyhow::Result<()> {
        let text = match self.own {
            Some(columns) => self.rows.lines(&own_table::table(table.clone(), columns, Timestamp::now()), kind),
            None => self.rows.lines(table, kind),
        };
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    /// Whether this revision of the object is new.
    fn note(&mut self, object: &Value) -> bool {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let revision = text("resourceVersion");
        self.seen.insert((text("namespace"), text("name")), revision.clone()).is_none_or(|before| before != revision)
    }
}

/// Events are read in the order in which they happened.
fn is_events(of: &ServedType) -> bool {
    of.plural == "events" && ["", "events.k8s.io"].contains(&of.group.as_str())
}

/// The table that was asked for; made here when the server sent the objects themselves.
fn as_table(value: Value) -> Value {
    if value["kind"] == "Table" {
        return value;
    }
    match value.get("items").and_then(Value::as_array) {
        Some(items) => table::of_objects(items),
        None => table::of_objects(&[value]),
    }
}

/// The objects of an answer, each with its type: in lists they have none.
fn items(of: &ServedType, mut value: Value) -> Vec<Value> {
    let Some(Value::Array(mut items)) = value.get_mut("items").map(Value::take) else { return vec![value] };
    for item in &mut items {
        item["apiVersion"] = of.api_version().into();
        item["kind"] = of.kind.clone().into();
    }
    items
}

/// Order by a field: what lacks it comes first, numbers and dates by value, names as people order them.
fn order(path: &Path, a: &Value, b: &Value) -> Ordering {
    match (path.find(a).first(), path.find(b).first()) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default())
        }
        (Some(Value::String(a)), Some(Value::String(b))) => natural(a, b),
        (Some(a), Some(b)) => a.to_string().cmp(&b.to_string()),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

/// `web-2` before `web-10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let digits = |text: &str| text.len() - text.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        let (left, right) = (digits(a), digits(b));
        if left > 0 && right > 0 {
            let number = |text: &str| text.trim_start_matches('0').to_owned();
            let (x, y) = (number(&a[..left]), number(&b[..right]));
            let order = x.len().cmp(&y.len()).then_with(|| x.cmp(&y));
            if order != Ordering::Equal {
                return order;
            }
            (a, b) = (&a[left..], &b[right..]);
            continue;
        }
        let (mut left, mut right) = (a.chars(), b.chars());
        match (left.next(), right.next()) {
            (Some(x), Some(y)) if x == y => (a, b) = (left.as_str(), right.as_str()),
            (x, y) => return x.cmp(&y),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_ordered_as_people_do() {
        for (a, b, wanted) in [
            (json!({"a": "web-2"}), json!({"a": "web-10"}), Ordering::Less),
            (json!({"a": "web-02"}), json!({"a": "web-2"}), Ordering::Equal),
            (json!({"a": "b"}), json!({"a": "a1"}), Ordering::Greater),
            (json!({"a": 9}), json!({"a": 10}), Ordering::Less),
            (json!({}), json!({"a": 1}), Ordering::Less),
            (json!({"a": "2026-01-02T00:00:00Z"}), json!({"a": "2026-01-10T00:00:00Z"}), Ordering::Less),
            (json!({"a": true}), json!({"a": false}), Ordering::Greater),
        ] {
            assert_eq!(order(&Path::parse(".a").unwrap(), &a, &b), wanted, "{a} {b}");
        }
    }

    #[test]
    fn a_watch_that_begins_again_prints_nothing_twice() {
        let mut watched = PrintedObjects {
            rows: table::TablePrinter::new(Show::default()),
            objects: output::ObjectPrinter::new(ClientOutput::Name, false, false),
            table: false,
            own: None,
            events: false,
            seen: HashMap::new(),
        };
        let of = ServedType { kind: "Secret".into(), version: "v1".into(), ..ServedType::default() };
        let list = |revision: &str| {
            json!({"items": [{"metadata": {"name": "a", "resourceVersion": "1"}},
                {"metadata": {"name": "b", "resourceVersion": revision}}]})
        };
        let mut out = Vec::new();
        watched.page(&of, list("2"), false, &mut out).unwrap();
        watched.page(&of, list("3"), false, &mut out).unwrap();
        let bookmark = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}});
        assert_eq!(watched.event(bookmark, &mut out).unwrap().as_deref(), Some("9"));
        assert_eq!(String::from_utf8(out).unwrap(), "secret/a\nsecret/b\nsecret/b\n");
    }
}
