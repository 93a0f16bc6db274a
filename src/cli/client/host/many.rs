//! A verb for several hosts: which, how many at a time, and how each ended.

use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use futures::StreamExt;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until};

use super::super::connect::{ClientSession, ServerArgs};
use super::super::errors::ApiRequestError;
use super::super::selected;
use super::super::table::harmless;
use super::super::types::hosts;
use super::super::until::{Awaited, WaitEnd, duration};
use super::super::wait::reason;
use super::super::{missing, request};
use super::files::SecretContents;
use super::verbs::{Verb, VerbDecision, decide, reached};
use crate::cli::failure::{CommandFailure, complain, plain};

/// Tries to change a host that others change at the same time.
const TRIES: usize = 5;

/// How the work on several hosts goes on.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cli) struct BatchPace {
    /// Wait until each host has reached what was asked for
    #[arg(long)]
    pub wait: bool,
    /// How long to wait for each host
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub timeout: Duration,
    /// Hosts at a time: the next one begins when one of them has reached what was asked for
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_parallel: u16,
    /// Pause between the starts of two machines [default: 1s where machines are powered on]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub stagger: Option<Duration>,
}

/// Verbs that are done at once have nothing to wait for.
impl Default for BatchPace {
    fn default() -> Self {
        Self { wait: false, timeout: Duration::ZERO, max_parallel: 1, stagger: None }
    }
}

/// How the outcome is printed.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(in crate::cli) struct OutcomeForm {
    /// Print type/name of each host that was changed, or the outcome of every host as JSON
    #[arg(long, short, value_enum, value_name = "FORM")]
    pub output: Option<Printed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Printed {
    Name,
    Json,
}

/// How it ended for one host.
#[derive(Debug, Serialize)]
struct VerbOutcome {
    namespace: String,
    name: String,
    result: Ending,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ending {
    /// What was asked for is stored.
    Changed,
    /// The host is as it was asked for.
    Done,
    /// Nothing had to be changed.
    Unchanged,
    /// It cannot be done.
    Refused,
    /// The server refused, or the host showed an error.
    Failed,
    /// It was not so in time.
    Late,
}

/// Says what became of one host.
pub(in crate::cli::client) fn say_one(
    namespace: &str,
    name: &str,
    message: &str,
    form: OutcomeForm,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (namespace, shown) = (namespace.to_owned(), harmless(name));
    match form.output {
        Some(Printed::Name) => writeln!(out, "{}/{shown}", hosts().one())?,
        Some(Printed::Json) => {
            let outcome =
                VerbOutcome { namespace, name: name.to_owned(), result: Ending::Changed, message: message.to_owned() };
            writeln!(out, "{}", serde_json::to_string_pretty(&[outcome])?)?;
        }
        None => writeln!(out, "host {shown} {}", harmless(message))?,
    }
    Ok(())
}

impl Ending {
    fn is_bad(self) -> bool {
        matches!(self, Self::Refused | Self::Failed | Self::Late)
    }
}

/// A verb and all that it needs for each host.
pub(super) struct VerbWork<'w> {
    pub session: &'w ClientSession,
    pub verb: Verb,
    /// Contents of Secrets that go with a host.
    pub files: SecretContents,
    pub pace: BatchPace,
    pub output: Option<Printed>,
}

/// When machines may be started: no two at the same moment.
struct Starts {
    next: Mutex<Instant>,
    between: Duration,
}

impl Starts {
    async fn turn(&self) {
        let mine = {
            let mut next = self.next.lock().await;
            let mine = (*next).max(Instant::now());
            *next = mine + self.between;
            mine
        };
        sleep_until(mine).await;
    }
}

impl VerbWork<'_> {
    /// Does it for all of these, prints a line for each, and fails when one did.
    pub(super) async fn run(&self, names: Vec<String>, out: &mut dyn Write) -> anyhow::Result<()> {
        let between = match self.pace.stagger {
            Some(between) => between,
            None if self.verb.powers_on() => Duration::from_secs(1),
            None => Duration::ZERO,
        };
        let starts = Starts { next: Mutex::new(Instant::now()), between };
        let (left, _) = watch::channel(names.len());
        let each = names.into_iter().map(|name| self.one(name, &starts, &left));
        let mut under_way = futures::stream::iter(each).buffer_unordered(self.pace.max_parallel.into());
        let mut outcomes = Vec::new();
        while let Some(outcome) = under_way.next().await {
            let outcome = outcome?;
            self.say(&outcome, out)?;
            outcomes.push(outcome);
        }
        drop(under_way);
        if self.output == Some(Printed::Json) {
            writeln!(out, "{}", serde_json::to_string_pretty(&outcomes)?)?;
        }
        if outcomes.iter().any(|outcome| outcome.result.is_bad()) {
            Err(CommandFailure::Reported.into())
        } else {
            Ok(())
        }
    }

    fn say(&self, outcome: &VerbOutcome, out: &mut dyn Write) -> anyhow::Result<()> {
        let VerbOutcome { name, result, message, .. } = outcome;
        if result.is_bad() {
            complain(format_args!("host {name} {message}"));
            return Ok(());
        }
        match self.output {
            Some(Printed::Json) => return Ok(()),
            Some(Printed::Name) if *result == Ending::Unchanged => return Ok(()),
            Some(Printed::Name) => writeln!(out, "{}/{}", hosts().one(), harmless(name))?,
            None => writeln!(out, "host {} {}", harmless(name), harmless(message))?,
        }
        Ok(out.flush()?)
    }

    async fn one(&self, name: String, starts: &Starts, left: &watch::Sender<usize>) -> anyhow::Result<VerbOutcome> {
        starts.turn().await;
        left.send_modify(|left| *left -= 1);
        let ended = match self.change(&name).await {
            Ok((false, decision)) => Ok(decision),
            Ok((true, (ending, said, before))) => {
                let mut left = left.subscribe();
                tokio::select! {
                    biased;
                    ended = self.until_reached(&name, &before) => ended.map(|(ending, said)| (ending, said, before)),
                    // Nobody waits for the place, nor for the outcome.
                    _ = left.wait_for(|left| *left == 0 && !self.pace.wait) => Ok((ending, said, before)),
                }
            }
            Err(error) => Err(error),
        };
        let namespace = self.session.namespace.clone();
        match ended {
            Ok((result, message, _)) => Ok(VerbOutcome { namespace, name, result, message }),
            // There is no server for the others either.
            Err(error) if matches!(error.downcast_ref(), Some(ApiRequestError::Unreachable(_))) => Err(error),
            Err(error) => {
                let message = format!("cannot be changed: {error:#}");
                Ok(VerbOutcome { namespace, name, result: Ending::Failed, message })
            }
        }
    }

    /// Changes the host. Whether there is something to wait for; how it is now, in words, and the host before.
    async fn change(&self, name: &str) -> anyhow::Result<(bool, (Ending, String, Value))> {
        let (of, session) = (hosts(), self.session);
        let path = of.path(Some(&session.namespace), Some(name));
        for _ in 0..TRIES {
            let host = match session.get(&path, &[], request::JSON).await {
                Err(error) if error.is_not_found() => bail!("{}", missing::explain(session, &of, name).await),
                host => host?,
            };
            let (mut patch, said) = match decide(&self.verb, &host) {
                VerbDecision::Refused(reason) => return Ok((false, (Ending::Refused, reason, host))),
                VerbDecision::Already(said) => {
                    let wait = !reached(&self.verb, &host);
                    return Ok((wait, (Ending::Unchanged, said, host)));
                }
                VerbDecision::Change(patch, said) => (patch, said),
            };
            // Of the host that was looked at: what somebody changes meanwhile is decided upon again.
            patch["metadata"]["resourceVersion"] = host["metadata"]["resourceVersion"].clone();
            let stored = async {
                if !self.files.is_empty() {
                    // No Secret is left behind for a host that does not take the rest.
                    session.merge_as(&path, &patch, true).await?;
                    self.files.store(session, &host).await?;
                }
                session.merge(&path, &patch).await
            };
            match stored.await {
                Err(error) if error.is_conflict() && !error.is_of_field_managers() => {}
                stored => {
                    let ended = match reached(&self.verb, &stored?) {
                        true => (false, (Ending::Done, self.verb.done().to_owned(), host)),
                        false => (true, (Ending::Changed, said, host)),
                    };
                    return Ok(ended);
                }
            }
        }
        bail!("others change it again and again")
    }

    /// Waits until the host is as it was asked for. Errors that it did not show before are told.
    async fn until_reached(&self, name: &str, before: &Value) -> anyhow::Result<(Ending, String)> {
        let of = hosts();
        let awaited = Awaited { of: &of, namespace: &self.session.namespace, name };
        let mut told = error_of(before);
        let (mut last, mut said) = (None, String::new());
        // What is awaited for minutes says where it is.
        let tells = self.pace.wait && self.output.is_none();
        let ended = self.session.until(&awaited, Instant::now() + self.pace.timeout, |host| {
            let Some(host) = host.filter(|host| host["metadata"]["uid"] == before["metadata"]["uid"]) else {
                return Some((Ending::Failed, "was deleted meanwhile".to_owned()));
            };
            if reached(&self.verb, host) {
                return Some((Ending::Done, self.verb.done().to_owned()));
            }
            let now = under_way(host);
            if tells && now != said && !now.is_empty() {
                eprintln!("host {} {}", plain(name), plain(&now));
                said = now;
            }
            let error = error_of(host);
            if error != told && !error.1.is_empty() {
                if self.verb.ends_at_an_error() {
                    return Some((Ending::Failed, format!("shows an error, and is tried again: {}", error.1)));
                }
                complain(format_args!("host {name} shows an error, and is tried again: {}", error.1));
            }
            told = error;
            last = Some(host.clone());
            None
        });
        Ok(match ended.await? {
            WaitEnd::Done(ended) => ended,
            WaitEnd::TimedOut => {
                let message = last.as_ref().and_then(reason).map(|message| format!(": {message}")).unwrap_or_default();
                (Ending::Late, format!("is not yet as it was asked for{message}"))
            }
        })
    }
}

/// State and phase: `provisioning, writing the image`.
fn under_way(host: &Value) -> String {
    let text = |pointer: &str| host.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let parts = [text("/status/provisioning/state"), text("/status/progress/phase")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// How often an operation failed, and the last reason.
fn error_of(host: &Value) -> (i64, String) {
    let status = &host["status"];
    let message = status["errorMessage"].as_str().unwrap_or_default();
    (status["errorCount"].as_i64().unwrap_or_default(), message.to_owned())
}

/// Connects and does it.
pub(super) async fn run(
    server: &ServerArgs,
    selected: (&[String], Option<&str>, bool),
    verb: Verb,
    pace: BatchPace,
    output: Option<Printed>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    selected::check(selected.0, selected.1, selected.2)?;
    let session = server.connect().await?;
    let names = selected::names(&session, selected.0, selected.1, selected.2).await?;
    let work = VerbWork { session: &session, verb, files: SecretContents::default(), pace, output };
    work.run(names, out).await
}
