//! `edit`: objects in the editor of whoever works here.
//!
//! What was changed there is written as a patch of that alone, so that nothing is undone that others changed meanwhile. When they
//! changed the same fields, or the server refuses what was written, the text is offered once more with the reason.

mod editor;
mod text;

use std::cell::Cell;
use std::io::Write;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::connect::{ClientSession, ServerArgs};
use super::errors::ApiRequestError;
use super::output;
use super::types::ServedType;
use super::{missing, names, request};
use crate::cli::failure::{CommandFailure, complain, usage};
use editor::EditorFile;
use text::ReopenReason;

/// How often one text is offered. Nobody mends a text as often; a program that plays the editor might go on for ever.
const OFFERS: usize = 50;
/// How often a change is sent that others come before with changes of other fields.
const TRIES: usize = 20;

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway edit host web-1
  slipway edit host/web-1 image/debian-12      one after the other
  VISUAL=nano slipway edit secret web-1-bmc")]
pub(in crate::cli) struct EditArgs {
    /// TYPE NAME… or TYPE/NAME…
    #[arg(required = true, value_name = "TYPE[/NAME]")]
    what: Vec<String>,
    /// Name of the field manager
    #[arg(long, value_name = "NAME", default_value = "slipway-edit")]
    field_manager: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// How an edit ended.
#[derive(Debug, PartialEq, Eq)]
enum Edited {
    Written,
    NotChanged,
}

/// What became of a change.
enum SentEdit {
    Written,
    /// Others changed these fields; the object as it is now.
    Overtaken(Vec<String>, Value),
    /// The server refuses it as it is.
    Refused(String),
}

pub(super) async fn run(options: EditArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let selections = names::parse(&options.what).map_err(usage)?;
    if selections.iter().any(|selection| selection.names.is_empty()) {
        return Err(usage("name the objects to edit: TYPE NAME, or TYPE/NAME"));
    }
    let in_editor = Cell::new(false);
    let ended = async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                // In an editor, Ctrl-C is the editor's.
                _ = interrupt.recv() => if !in_editor.get() { bail!("interrupted") },
                _ = terminate.recv() => bail!("ended by SIGTERM"),
                _ = hangup.recv() => bail!("ended by SIGHUP"),
            }
        }
    };
    // When it is broken off, the private folder goes with it.
    tokio::select! {
        done = edit_all(&options, &selections, &in_editor, out) => done,
        ended = ended => ended,
    }
}

async fn edit_all(
    options: &EditArgs,
    selections: &[names::NameSelection],
    in_editor: &Cell<bool>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let session = options.server.connect().await?;
    let types = session.types().await?;
    let mut wanted: Vec<(&ServedType, &str)> = Vec::new();
    for selection in selections {
        for of in types.find(&selection.word)? {
            wanted.extend(selection.names.iter().map(|name| (of, name.as_str())));
        }
    }
    let alone = wanted.len() == 1;
    let mut failed = false;
    for (of, name) in wanted {
        let edit = Edit { session: &session, of, name, manager: &options.field_manager, in_editor };
        match edit.run().await {
            Ok((edited, label)) => {
                writeln!(out, "{label} {}", if edited == Edited::Written { "edited" } else { "not changed" })?;
                out.flush()?;
            }
            Err(error) if alone || matches!(error.downcast_ref(), Some(ApiRequestError::Unreachable(_))) => {
                return Err(error);
            }
            Err(error) => {
                complain(format_args!("{error:#}"));
                failed = true;
            }
        }
    }
    if failed { Err(CommandFailure::Reported.into()) } else { Ok(()) }
}

/// One object that is edited.
struct Edit<'e> {
    session: &'e ClientSession,
    of: &'e ServedType,
    name: &'e str,
    manager: &'e str,
    in_editor: &'e Cell<bool>,
}

impl Edit<'_> {
    fn path(&self) -> String {
        self.of.path(Some(&self.session.namespace), Some(self.name))
    }

    fn is_secret(&self) -> bool {
        self.of.group.is_empty() && self.of.plural == "secrets"
    }

    /// Whether the status is written with the rest.
    fn has_status(&self) -> bool {
        !self.of.has_subresource("status")
    }

    async fn get(&self) -> Result<Value, ApiRequestError> {
        let mut object = self.session.get(&self.path(), &[], request::JSON).await?;
        object["apiVersion"] = self.of.api_version().into();
        object["kind"] = self.of.kind.clone().into();
        Ok(object)
    }

    /// How it ended, and the object's name for people.
    async fn run(&self) -> anyhow::Result<(Edited, String)> {
        let object = match self.get().await {
            Err(error) if error.is_not_found() => {
                bail!("{}", missing::explain(self.session, self.of, self.name).await)
            }
            object => object?,
        };
        let label = output::name_of(&object);
        let draft = EditorFile::new(&format!("{}-{}", self.of.one(), self.name))?;
        let mut changed = false;
        match self.with(object, &draft, &mut changed).await {
            Ok(edited) => Ok((edited, label)),
            Err(error) if !changed => Err(error.context(format!("{label} was not changed"))),
            Err(error) if self.is_secret() => {
                Err(error.context(format!("{label} was not changed, and your text is not kept, for it has secrets")))
            }
            Err(error) => {
                let file = draft.keep();
                Err(error.context(format!("{label} was not changed; your text is in {}", file.display())))
            }
        }
    }

    /// Offers the text until it is written or given up. `changed` says whether the file has work of somebody in it.
    async fn with(&self, object: Value, draft: &EditorFile, changed: &mut bool) -> anyhow::Result<Edited> {
        let uid = object["metadata"]["uid"].clone();
        let mut base = text::editable(&object, self.has_status());
        let mut offered = text::head(&base, None) + &output::yaml(&base)?;
        let mut reopened: Option<ReopenReason> = None;
        for _ in 0..OFFERS {
            draft.write(&offered)?;
            self.in_editor.set(true);
            let edited = draft.edit().await;
            self.in_editor.set(false);
            let saved = draft.read()?;
            let same = saved == offered;
            *changed |= !same;
            edited?;
            match reopened {
                Some(reopened) if same => return Err(given_up(&reopened)),
                _ if same || saved.trim().is_empty() => return Ok(Edited::NotChanged),
                _ => {}
            }
            let patch = match text::read(&saved) {
                Ok(None) => return Ok(Edited::NotChanged),
                Ok(Some(written)) => text::changes(&base, &written, self.has_status()),
                Err(fault) => Err(format!("it cannot be read: {fault}")),
            };
            let again = match patch {
                Ok(None) => return Ok(Edited::NotChanged),
                Ok(Some(patch)) => match self.send(&patch, &base, &uid).await? {
                    SentEdit::Written => return Ok(Edited::Written),
                    SentEdit::Refused(reason) => ReopenReason::Refused(reason),
                    SentEdit::Overtaken(fields, now) => {
                        let aside = draft.put_aside(&saved)?;
                        base = text::editable(&now, self.has_status());
                        let again = ReopenReason::Overtaken(fields, aside.display().to_string());
                        offered = text::head(&base, Some(&again)) + &output::yaml(&text::merged(&base, &patch))?;
                        reopened = Some(again);
                        continue;
                    }
                },
                Err(reason) => ReopenReason::Refused(reason),
            };
            offered = text::head(&base, Some(&again)) + text::body(&saved);
            reopened = Some(again);
        }
        bail!("it was offered {OFFERS} times")
    }

    /// Sends a change of `base`, which others may have changed meanwhile.
    async fn send(&self, patch: &Value, base: &Value, uid: &Value) -> anyhow::Result<SentEdit> {
        let query = [("fieldManager", self.manager), ("fieldValidation", "Strict")];
        for _ in 0..TRIES {
            let now = match self.get().await {
                Err(error) if error.is_not_found() => bail!("it was deleted meanwhile"),
                now => now?,
            };
            if now["metadata"]["uid"] != *uid {
                bail!("it was deleted meanwhile, and made anew");
            }
            let fields = text::overtaken(patch, base, &text::editable(&now, true), self.is_secret());
            if !fields.is_empty() {
                return Ok(SentEdit::Overtaken(fields, now));
            }
            // So that what was looked at a moment ago is what is changed.
            let mut patch = patch.clone();
            patch["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
            match self.session.patch(&self.path(), &query, request::MERGE, &patch).await {
                Ok(_) => return Ok(SentEdit::Written),
                Err(error) if error.is_conflict() => {}
                Err(error) if error.is_of_content() => {
                    return Ok(SentEdit::Refused(error.of_patch(self.of, self.name).to_string()));
                }
                Err(error) => return Err(error).context("it is not written"),
            }
        }
        bail!("others changed it again and again while it was written: try once more")
    }
}

fn given_up(reopened: &ReopenReason) -> anyhow::Error {
    match reopened {
        ReopenReason::Refused(reason) => anyhow!("{reason}"),
        ReopenReason::Overtaken(fields, _) => anyhow!("somebody else changed it meanwhile: {}", fields.join(", ")),
    }
}
