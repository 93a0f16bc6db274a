//! An inventory as YAML.
//!
//! Every name and every text is in double quotes: without them Ansible's YAML, which is 1.1, reads `1e3`, `no`, and a MAC address of
//! digits as something else.

use std::fmt::Write;

use super::variable::{NonTextWords, quoted};
use super::{Inventory, Vars};

/// YAML's words.
const WORDS: NonTextWords = NonTextWords { yes: "true", no: "false" };

impl Inventory {
    /// As YAML, in a file that ends in `.yaml` or `.yml`.
    pub fn yaml(&self) -> String {
        let mut out = YamlWriter::default();
        for comment in &self.comments {
            out.line(0, format_args!("# {comment}"));
        }
        out.line(0, format_args!("all:"));
        if !self.vars.is_empty() {
            out.line(1, format_args!("vars:"));
            out.vars(2, &self.vars);
        }
        out.names(1, "hosts", self.hosts.len());
        for (host, vars) in &self.hosts {
            out.line(2, format_args!("{}:{}", quoted(host.as_str()), if vars.is_empty() { " {}" } else { "" }));
            out.vars(3, vars);
        }
        if self.groups.is_empty() {
            return out.0;
        }
        out.line(1, format_args!("children:"));
        for (name, group) in &self.groups {
            out.line(2, format_args!("{}:", quoted(name.as_str())));
            out.names(3, "hosts", group.hosts.len());
            for host in &group.hosts {
                out.line(4, format_args!("{}: {{}}", quoted(host.as_str())));
            }
            if !group.children.is_empty() {
                out.line(3, format_args!("children:"));
            }
            for child in &group.children {
                out.line(4, format_args!("{}: {{}}", quoted(child.as_str())));
            }
        }
        out.0
    }
}

#[derive(Default)]
struct YamlWriter(String);

impl YamlWriter {
    fn line(&mut self, depth: usize, text: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        _ = writeln!(self.0, "{:1$}{text}", "", 2 * depth);
    }

    fn names(&mut self, depth: usize, section: &str, number: usize) {
        self.line(depth, format_args!("{section}:{}", if number == 0 { " {}" } else { "" }));
    }

    fn vars(&mut self, depth: usize, vars: &Vars) {
        for (name, value) in vars {
            self.line(depth, format_args!("{}: {}", quoted(name), value.written(&WORDS)));
        }
    }
}
