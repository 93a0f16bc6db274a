//! An inventory as INI.
//!
//! A line of a host is split as a shell splits words, then each value is read as a literal of Python, and as plain text when it is
//! none. A line below `[all:vars]` is not split. So a value is a literal in any case, but for plain words and addresses that can
//! be nothing else; and of a host's it is in single quotes beside.

use std::fmt::Write;
use std::net::Ipv4Addr;

use super::Inventory;
use super::variable::{NonTextWords, Variable};

/// Python's words.
const WORDS: NonTextWords = NonTextWords { yes: "True", no: "False" };

impl Inventory {
    /// As INI. `ansible-inventory` reads it whatever the file is called; kubespray's settings want another ending than `.ini`.
    pub fn ini(&self) -> String {
        let mut out = String::new();
        for comment in &self.comments {
            line(&mut out, format_args!("# {comment}"));
        }
        line(&mut out, format_args!("[all]"));
        for (host, vars) in &self.hosts {
            out.push_str(host.as_str());
            for (name, value) in vars {
                out.push(' ');
                out.push_str(name);
                out.push('=');
                match plain(value) {
                    Some(word) => out.push_str(word),
                    // A literal has no single quote in it.
                    None => _ = write!(out, "'{}'", value.written(&WORDS)),
                }
            }
            out.push('\n');
        }
        for (name, group) in &self.groups {
            line(&mut out, format_args!("\n[{name}]"));
            for host in &group.hosts {
                line(&mut out, format_args!("{host}"));
            }
        }
        for (name, group) in self.groups.iter().filter(|(_, group)| !group.children.is_empty()) {
            line(&mut out, format_args!("\n[{name}:children]"));
            for child in &group.children {
                line(&mut out, format_args!("{child}"));
            }
        }
        if !self.vars.is_empty() {
            line(&mut out, format_args!("\n[all:vars]"));
        }
        for (name, value) in &self.vars {
            line(&mut out, format_args!("{name}={}", value.written(&WORDS)));
        }
        out
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    _ = writeln!(out, "{text}");
}

/// A text that is only a text, to a shell and to Python: an IPv4 address, or a word that is no constant.
fn plain(value: &Variable) -> Option<&str> {
    let Variable::Text(text) = value else { return None };
    let text = text.as_str();
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
        && !["True", "False", "None"].contains(&text);
    (is_word || text.parse::<Ipv4Addr>().is_ok()).then_some(text)
}
