//! What became of hosts, a line each, or as JSON in the end.

use std::io::Write;

use serde_json::{Value, json};

use super::super::table::harmless;
use super::super::types::hosts;
use super::many::{OutcomeForm, Printed};
use crate::cli::failure::{CommandFailure, complain};

/// The outcomes so far.
pub(in crate::cli::client) struct OutcomeReport {
    form: OutcomeForm,
    outcomes: Vec<Value>,
    failed: bool,
}

impl OutcomeReport {
    pub(in crate::cli::client) fn new(form: OutcomeForm) -> Self {
        Self { form, outcomes: Vec::new(), failed: false }
    }

    /// What became of the host of this namespace and name: `changed`, `unchanged` or `failed`.
    ///
    /// # Errors
    ///
    /// When nobody reads it any more.
    pub(in crate::cli::client) fn add(
        &mut self,
        (namespace, name): &(String, String),
        result: &str,
        message: &str,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        if result == "failed" {
            self.failed = true;
            complain(format_args!("host {namespace}/{name} {message}"));
        }
        match self.form.output {
            None if result != "failed" => {
                writeln!(out, "host {} {}", harmless(&format!("{namespace}/{name}")), harmless(message))?;
            }
            Some(Printed::Name) if result == "changed" => writeln!(out, "{}/{}", hosts().one(), harmless(name))?,
            _ => {}
        }
        self.outcomes.push(json!({ "namespace": namespace, "name": name, "result": result, "message": message }));
        Ok(out.flush()?)
    }

    /// A line about all of them, for people.
    pub(in crate::cli::client) fn sum(&self, line: &str, out: &mut dyn Write) -> anyhow::Result<()> {
        if self.form.output.is_none() {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Prints what is printed at the end; a failure when there was one.
    pub(in crate::cli::client) fn end(self, out: &mut dyn Write) -> anyhow::Result<()> {
        if self.form.output == Some(Printed::Json) {
            writeln!(out, "{}", serde_json::to_string_pretty(&self.outcomes)?)?;
        }
        if self.failed { Err(CommandFailure::Reported.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_in_lines_by_name_or_as_json() {
        for (output, wanted) in [
            (None, "host n/a resumed\nhost n/b was not paused\n2 of them\n"),
            (Some(Printed::Name), "baremetalhost.metal3.io/a\n"),
            (Some(Printed::Json), "[\n  {\n    \"message\": \"resumed\",\n    \"name\": \"a\""),
        ] {
            let mut report = OutcomeReport::new(OutcomeForm { output });
            let mut out = Vec::new();
            let host = |name: &str| ("n".to_owned(), name.to_owned());
            report.add(&host("a"), "changed", "resumed", &mut out).unwrap();
            report.add(&host("b"), "unchanged", "was not paused", &mut out).unwrap();
            report.sum("2 of them", &mut out).unwrap();
            report.add(&host("c"), "failed", "cannot be resumed", &mut out).unwrap();
            assert!(report.end(&mut out).is_err());
            let said = String::from_utf8(out).unwrap();
            assert!(said.starts_with(wanted), "{said}");
        }
    }
}
