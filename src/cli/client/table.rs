//! The server's tables as kubectl prints them.

use serde_json::Value;

use super::tabs::{AlignedRows, LEAST, PADDING, TableStyle};
use super::terminal::Terminal;
use crate::log::is_safe;

/// What to show of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Show {
    /// Also columns of lower priority.
    pub wide: bool,
    /// A column with the namespace.
    pub namespaces: bool,
    /// Labels that have columns of their own.
    pub label_columns: Vec<String>,
    /// A column with all labels.
    pub labels: bool,
    /// Leave the headings out.
    pub no_headers: bool,
    /// What stands before names, as `secret/`.
    pub prefix: String,
    /// A first column with the type of the event.
    pub events: bool,
    /// Whether rows follow, whose columns must be those of the first.
    pub follows: bool,
    /// Where it is shown.
    pub terminal: Terminal,
}

/// Columns whose text is worth more than the columns before it, and the least of it to be seen.
const TELLING: [&str; 2] = ["reason", "message"];
const TELLING_WIDTH: usize = 24;

/// Columns that say how an object is.
const STATES: [&str; 4] = ["state", "status", "phase", "error"];

/// Prints the tables of one type, one after the other, under one line of headings.
#[derive(Debug)]
pub(super) struct TablePrinter {
    show: Show,
    columns: Vec<TableColumn>,
    rows: AlignedRows,
    headed: bool,
}

#[derive(Clone, Debug)]
struct TableColumn {
    name: String,
    priority: i64,
    is_name: bool,
    /// Left out, since the terminal is too narrow for it.
    is_hidden: bool,
}

impl TablePrinter {
    pub(super) fn new(show: Show) -> Self {
        Self { show, columns: Vec::new(), rows: AlignedRows::default(), headed: false }
    }

    /// The table as lines; `event` says what a watch saw. Tables after the first may come without their columns.
    pub(super) fn lines(&mut self, table: &Value, event: &str) -> String {
        let defined = table["columnDefinitions"].as_array().map_or(&[][..], Vec::as_slice);
        if !defined.is_empty() {
            self.columns = defined.iter().map(TableColumn::read).collect();
        }
        self.make_room(table);
        let mut rows = Vec::new();
        let mut look = self.look();
        let found = table["rows"].as_array().map_or(&[][..], Vec::as_slice);
        if !self.headed && !self.show.no_headers && !found.is_empty() {
            rows.push(self.headings());
            self.headed = true;
            look.headed = true;
        }
        rows.extend(found.iter().map(|row| self.row(row, event)));
        self.rows.shown(&rows, &look)
    }

    /// Leaves columns out that the terminal is too narrow for.
    fn make_room(&mut self, table: &Value) {
        let Some(room) = self.show.terminal.width.filter(|_| !self.show.follows) else { return };
        let rows = table["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let longest = |index: usize| rows.iter().map(|row| cell(&row["cells"][index]).chars().count()).max();
        let wanted: Vec<(usize, WantedColumn<'_>)> = self
            .shown()
            .map(|(index, column)| {
                let content = longest(index).unwrap_or_default();
                let prefix = if column.is_name { self.show.prefix.len() } else { 0 };
                (index, WantedColumn { name: &column.name, content: content + if content > 0 { prefix } else { 0 } })
            })
            .collect();
        let namespace =
            |row: &Value| row["object"]["metadata"]["namespace"].as_str().map_or(0, |name| name.chars().count());
        let before = match rows.iter().map(namespace).max().filter(|_| self.show.namespaces) {
            Some(longest) => taken("NAMESPACE", longest),
            None => 0,
        };
        let (indices, wanted): (Vec<usize>, Vec<WantedColumn<'_>>) = wanted.into_iter().unzip();
        let kept = kept(&wanted, room.saturating_sub(before));
        for (index, kept) in indices.into_iter().zip(kept) {
            self.columns[index].is_hidden = !kept;
        }
    }

    /// How the rows look on the terminal.
    fn look(&self) -> TableStyle {
        let before = usize::from(self.show.events) + usize::from(self.show.namespaces);
        let is_state = |column: &TableColumn| STATES.contains(&column.name.to_lowercase().as_str());
        let states = self.shown().map(|(_, column)| column).enumerate().filter(|(_, column)| is_state(column));
        let colored = states.map(|(at, _)| before + at).filter(|_| self.show.terminal.color).collect();
        TableStyle { width: self.show.terminal.width, colored, headed: false }
    }

    fn shown(&self) -> impl Iterator<Item = (usize, &TableColumn)> {
        let is_shown = |column: &TableColumn| (self.show.wide || column.priority == 0) && !column.is_hidden;
        self.columns.iter().enumerate().filter(move |(_, column)| is_shown(column))
    }

    fn headings(&self) -> Vec<String> {
        let mut cells = Vec::new();
        if self.show.events {
            cells.push("EVENT".to_owned());
        }
        if self.show.namespaces {
            cells.push("NAMESPACE".to_owned());
        }
        cells.extend(self.shown().map(|(_, column)| column.name.to_uppercase()));
        // As kubectl: the part of the label after the slash.
        let label = |label: &String| label.rsplit('/').next().unwrap_or_default().to_uppercase();
        cells.extend(self.show.label_columns.iter().map(label));
        if self.show.labels {
            cells.push("LABELS".to_owned());
        }
        cells
    }

    fn row(&self, row: &Value, event: &str) -> Vec<String> {
        let metadata = &row["object"]["metadata"];
        let mut cells = Vec::new();
        if self.show.events {
            cells.push(event.to_owned());
        }
        if self.show.namespaces {
            cells.push(metadata["namespace"].as_str().unwrap_or_default().to_owned());
        }
        for (index, column) in self.shown() {
            let text = cell(&row["cells"][index]);
            cells.push(if column.is_name { format!("{}{text}", self.show.prefix) } else { text });
        }
        let labels = &metadata["labels"];
        for label in &self.show.label_columns {
            cells.push(labels[label].as_str().unwrap_or_default().to_owned());
        }
        if self.show.labels {
            cells.push(all_labels(labels));
        }
        cells
    }
}

impl TableColumn {
    fn read(definition: &Value) -> Self {
        Self {
            name: definition["name"].as_str().unwrap_or_default().to_owned(),
            priority: definition["priority"].as_i64().unwrap_or_default(),
            is_name: definition["format"] == "name",
            is_hidden: false,
        }
    }
}

/// A column before it is known whether there is room for it.
#[derive(Clone, Copy, Debug)]
struct WantedColumn<'a> {
    name: &'a str,
    /// Characters of its longest cell; 0 when it is empty in every row.
    content: usize,
}

/// Characters that a column takes with the space behind it.
fn taken(name: &str, content: usize) -> usize {
    (name.chars().count().max(content) + PADDING).max(LEAST)
}

/// Which columns are shown in this many characters: all where they fit. Else those go that are empty in every row, and then,
/// from the right, those that leave a reason less than can be read. The first two, name and state, stay.
fn kept(columns: &[WantedColumn<'_>], room: usize) -> Vec<bool> {
    let is_telling = |column: &WantedColumn<'_>| TELLING.contains(&column.name.to_lowercase().as_str());
    let mut kept = vec![true; columns.len()];
    let Some(last) = columns.len().checked_sub(1) else { return kept };
    let length = |kept: &[bool], content_of_last: usize| {
        let before = columns.iter().zip(kept).take(last).filter(|(_, kept)| **kept);
        before.map(|(column, _)| taken(column.name, column.content)).sum::<usize>() + content_of_last
    };
    let whole = columns[last].content.max(columns[last].name.chars().count());
    if length(&kept, whole) <= room {
        return kept;
    }
    for (column, kept) in columns.iter().zip(&mut kept).skip(1) {
        *kept = column.content > 0;
    }
    if is_telling(&columns[last]) && kept[last] {
        for at in (2..last).rev() {
            if length(&kept, whole.min(TELLING_WIDTH)) <= room {
                break;
            }
            kept[at] = false;
        }
    }
    kept
}

fn all_labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let pairs: Vec<String> =
        pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    if pairs.is_empty() { "<none>".into() } else { pairs.join(",") }
}

/// A cell on one line, without anything that a terminal would obey.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.find(['\n', '\r', '\u{c}']) {
        Some(end) => format!("{}...", harmless(&text[..end])),
        None => harmless(&text),
    }
}

/// Without control characters and marks that turn the direction of text; tabs become spaces.
pub(in crate::cli) fn harmless(text: &str) -> String {
    let shown = |char: char| match char {
        '\t' => " ".to_owned(),
        '\u{1b}' => "^[".to_owned(),
        char if !is_safe(char) => String::new(),
        char => char.to_string(),
    };
    text.chars().map(shown).collect()
}

/// The rows, headings first, without the columns that there is no room for; see [`kept`].
pub(in crate::cli) fn fitting(rows: Vec<Vec<String>>, room: Option<usize>) -> Vec<Vec<String>> {
    let (Some(room), Some(headings)) = (room, rows.first().cloned()) else { return rows };
    let longest = |at: usize| rows[1..].iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let columns: Vec<WantedColumn<'_>> = headings
        .iter()
        .enumerate()
        .map(|(at, name)| WantedColumn { name, content: longest(at).unwrap_or_default() })
        .collect();
    let kept = kept(&columns, room);
    let narrow =
        |row: Vec<String>| row.into_iter().zip(&kept).filter(|(_, kept)| **kept).map(|(cell, _)| cell).collect();
    rows.into_iter().map(narrow).collect()
}

/// A table of objects that the server sent as they are: name and time of creation.
pub(super) fn of_objects(objects: &[Value]) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let metadata = &object["metadata"];
            serde_json::json!({"cells": [metadata["name"], metadata["creationTimestamp"]], "object": {"metadata": metadata}})
        })
        .collect();
    serde_json::json!({
        "kind": "Table",
        "columnDefinitions": [{"name": "Name", "format": "name", "priority": 0}, {"name": "Created at", "priority": 0}],
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table() -> Value {
        let object =
            |name: &str, labels: Value| json!({"metadata": {"name": name, "namespace": "rack", "labels": labels}});
        json!({
            "columnDefinitions": [
                {"name": "Name", "format": "name", "priority": 0},
                {"name": "State", "priority": 0},
                {"name": "BMC", "priority": 1},
                {"name": "Age", "priority": 0},
            ],
            "rows": [
                {"cells": ["web-1", "provisioned", "ipmi://x", "5s"], "object": object("web-1", json!({"example.org/role": "edge"}))},
                {"cells": ["db", null, 7, "2m\nx\u{1b}[1m"], "object": object("db", Value::Null)},
            ],
        })
    }

    #[test]
    fn what_a_terminal_obeys_and_what_turns_text_round_is_not_shown() {
        assert_eq!(harmless("a\u{1b}[2J\u{202e}b\u{2066}\tc\u{9b}31m\u{7}é"), "a^[[2Jb c31mé");
    }

    #[test]
    fn what_is_asked_for_is_shown() {
        let print = |show: Show| TablePrinter::new(show).lines(&table(), "ADDED");
        for (show, wanted) in [
            (Show::default(), "NAME    STATE         AGE\nweb-1   provisioned   5s\ndb                    2m...\n"),
            (
                Show { wide: true, ..Show::default() },
                "NAME    STATE         BMC        AGE\nweb-1   provisioned   ipmi://x   5s\ndb                    7          2m...\n",
            ),
            (
                Show { namespaces: true, no_headers: true, prefix: "bmh/".into(), ..Show::default() },
                "rack   bmh/web-1   provisioned   5s\nrack   bmh/db                    2m...\n",
            ),
            (
                Show { label_columns: vec!["example.org/role".into()], labels: true, ..Show::default() },
                "NAME    STATE         AGE     ROLE   LABELS\n\
                 web-1   provisioned   5s      edge   example.org/role=edge\n\
                 db                    2m...          <none>\n",
            ),
            (
                Show { events: true, ..Show::default() },
                "EVENT   NAME    STATE         AGE\nADDED   web-1   provisioned   5s\nADDED   db                    2m...\n",
            ),
        ] {
            assert_eq!(print(show), wanted);
        }
    }

    #[test]
    fn a_terminal_gets_colours_and_lines_that_fit() {
        let print = |terminal: Terminal, namespaces: bool| {
            TablePrinter::new(Show { terminal, namespaces, ..Show::default() }).lines(&table(), "")
        };
        let colored = print(Terminal { color: true, width: None }, true);
        assert!(colored.contains("rack        web-1   \u{1b}[32mprovisioned\u{1b}[0m   5s\n"), "{colored:?}");
        assert!(colored.starts_with("NAMESPACE   NAME    STATE         AGE\n"), "{colored:?}");
        let cut = print(Terminal { color: true, width: Some(14) }, false);
        assert_eq!(cut, "NAME    STATE…\nweb-1   \u{1b}[32mprovi\u{1b}[0m…\ndb           …\n");
        let fits = print(Terminal { color: false, width: Some(80) }, false);
        assert_eq!(fits, TablePrinter::new(Show::default()).lines(&table(), ""));
    }

    #[test]
    fn what_is_empty_goes_first_and_a_reason_last() {
        let column = |name: &'static str, content| WantedColumn { name, content };
        let hosts = |reason| {
            [
                column("NAME", 5),
                column("STATE", 11),
                column("PHASE", 0),
                column("LEFT", 0),
                column("ADDRESS", 12),
                column("REASON", reason),
            ]
        };
        for (columns, room, wanted) in [
            (hosts(90), 200, [true, true, true, true, true, true]),
            (hosts(90), 80, [true, true, false, false, true, true]),
            (hosts(90), 50, [true, true, false, false, false, true]),
            (hosts(90), 10, [true, true, false, false, false, true]),
            (hosts(0), 30, [true, true, false, false, true, false]),
        ] {
            assert_eq!(kept(&columns, room), wanted, "{room}");
        }
        assert_eq!(kept(&[], 5), [false; 0]);
        // Without a reason nothing that says something goes.
        assert_eq!(
            kept(&[column("NAME", 5), column("SIZE", 9), column("X", 0), column("AGE", 3)], 8),
            [true, true, false, true]
        );
        let cell = |reason: &str| json!([{ "cells": ["a", "available", "", reason], "object": {} }]);
        let table = |reason| {
            json!({ "columnDefinitions": [{ "name": "Name" }, { "name": "State" }, { "name": "Phase" }, { "name": "Reason" }],
            "rows": cell(reason) })
        };
        let print = |follows, reason| {
            let terminal = Terminal { color: false, width: Some(40) };
            TablePrinter::new(Show { terminal, follows, ..Show::default() }).lines(&table(reason), "")
        };
        assert!(print(false, "it does not answer at all").starts_with("NAME   STATE       REASON\n"));
        assert!(print(true, "it does not answer at all").starts_with("NAME   STATE       PHASE   REASON"));
        assert!(print(false, "short").starts_with("NAME   STATE       PHASE"), "it fits");
    }

    #[test]
    fn a_watch_heads_once_and_remembers_the_columns() {
        let mut printer = TablePrinter::new(Show::default());
        assert_eq!(printer.lines(&json!({"rows": []}), ""), "");
        assert!(printer.lines(&table(), "").starts_with("NAME"));
        let next = json!({"columnDefinitions": null, "rows": [{"cells": ["a", "b", "c", "d"]}]});
        assert_eq!(printer.lines(&next, ""), "a       b             d\n");
    }
}
