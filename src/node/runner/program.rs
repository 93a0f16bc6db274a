//! `bash` and `ansible`: programs, run apart from this one, without a terminal, with a clean environment.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Bench, ItemOutcome, NOT_FOUND, NOT_RUN, TOOK_TOO_LONG, needed, too_long};
use crate::api::lcm::StateItem;
use crate::files as bounded_files;
use crate::node::effect::NodeEffect;
use crate::node::output::StepOutput;
use crate::node::processes::MARK;
use crate::node::report::{MAX_RESULT, without_nulls};

/// How long output is read on after the program has ended: what it left behind may hold the pipe.
const DRAIN: Duration = Duration::from_secs(1);
/// Most values in a result; more are cut off where it is kept.
const MAX_VALUES: usize = 1000;
/// Where the deployment data are, in the environment.
const DEPLOYMENT: &str = "SLIPWAY_DEPLOYMENT";
/// Where the result goes to, in the environment.
const RESULT: &str = "SLIPWAY_RESULT";

/// Runs a script by bash.
pub(super) async fn bash(item: &StateItem, bench: &Bench<'_>, limit: Duration) -> ItemOutcome {
    match prepare_bash(item, bench) {
        Ok(command) => run(command, item, bench, limit).await,
        Err(failed) => failed,
    }
}

fn prepare_bash(item: &StateItem, bench: &Bench<'_>) -> Result<Command, ItemOutcome> {
    let script = match item.params.get("script") {
        Some(script) => {
            let path = bench.scratch.join("script");
            lay(&path, script.as_bytes()).map_err(not_laid)?;
            path
        }
        None => {
            let named = item.params.get("path").map(PathBuf::from).filter(|path| path.is_absolute());
            named.ok_or_else(|| {
                ItemOutcome::failed(NOT_RUN, "one of the parameters script and path (absolute) must be there")
            })?
        }
    };
    let mut command = command("bash", bench)?;
    command.arg(script);
    for (name, value) in &item.params {
        if ["script", "path", "timeout"].contains(&name.as_str()) {
            continue;
        }
        let mut letters = name.bytes();
        let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_');
        if !first || !letters.all(|c| c.is_ascii_alphanumeric() || c == b'_') || value.contains('\0') {
            let fault = format!("the parameter {name:?} cannot stand in an environment: letters, digits and _ can");
            return Err(ItemOutcome::failed(NOT_RUN, fault));
        }
        command.env(name, value);
    }
    Ok(command)
}

/// Runs a playbook on this node.
pub(super) async fn ansible(item: &StateItem, bench: &Bench<'_>, limit: Duration) -> ItemOutcome {
    match prepare_ansible(item, bench) {
        Ok(command) => run(command, item, bench, limit).await,
        Err(failed) => failed,
    }
}

fn prepare_ansible(item: &StateItem, bench: &Bench<'_>) -> Result<Command, ItemOutcome> {
    let playbook = Path::new(needed(item, "playbook")?);
    if !playbook.is_absolute() {
        return Err(ItemOutcome::failed(NOT_RUN, "the parameter playbook must be an absolute path"));
    }
    let vars: serde_json::Map<String, Value> = item
        .params
        .iter()
        .filter(|(name, _)| !["playbook", "timeout"].contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone().into()))
        .collect();
    let path = bench.scratch.join("vars.json");
    lay(&path, Value::Object(vars).to_string().as_bytes()).map_err(not_laid)?;
    let mut extra = OsString::from("@");
    extra.push(&path);
    let mut command = command("ansible-playbook", bench)?;
    command.args(["-i", "localhost,", "-c", "local", "-e"]).arg(extra).arg(playbook);
    let settings = [
        ("ANSIBLE_NOCOLOR", "1"),
        ("ANSIBLE_STDOUT_CALLBACK", "default"),
        ("ANSIBLE_DISPLAY_SKIPPED_HOSTS", "false"),
        ("ANSIBLE_RETRY_FILES_ENABLED", "false"),
        ("ANSIBLE_LOCALHOST_WARNING", "false"),
        ("ANSIBLE_INVENTORY_UNPARSED_WARNING", "false"),
        ("ANSIBLE_PYTHON_INTERPRETER", "auto_silent"),
        ("PYTHONUNBUFFERED", "1"),
    ];
    command.envs(settings).env("ANSIBLE_LOCAL_TEMP", &bench.scratch);
    Ok(command)
}

/// A program with the environment of all steps.
fn command(program: &str, bench: &Bench<'_>) -> Result<Command, ItemOutcome> {
    let found = std::env::split_paths(bench.path).map(|folder| folder.join(program)).find(|path| path.is_file());
    let Some(found) = found else {
        let fault = format!("{program} is not installed on this node (it was looked for in {})", bench.path);
        return Err(ItemOutcome::failed(NOT_FOUND, fault));
    };
    let mut command = Command::new(found);
    command
        .env_clear()
        .env("PATH", bench.path)
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env(MARK, bench.state)
        .env(RESULT, bench.scratch.join("result"))
        .current_dir("/")
        .stdin(Stdio::null());
    if bench.deployment.is_some() {
        command.env(DEPLOYMENT, bench.scratch.join("deployment"));
    }
    // A group of its own, which nobody's Ctrl-C reaches.
    command.process_group(0).kill_on_drop(true);
    // SAFETY: umask(2) is async-signal-safe and cannot fail. The agent's own is narrower than what packages expect.
    unsafe {
        command.pre_exec(|| {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
            Ok(())
        });
    }
    Ok(command)
}

fn not_laid(error: io::Error) -> ItemOutcome {
    ItemOutcome::failed(NOT_RUN, format!("cannot lay down what the step needs: {error}"))
}

/// A new file for root alone.
fn lay(path: &Path, content: &[u8]) -> io::Result<()> {
    File::options().write(true).create_new(true).mode(0o600).open(path)?.write_all(content)
}

/// Makes the folder of one step anew, with its deployment data.
pub(in crate::node) fn scratch(
    folder: &Path,
    deployment: Option<&crate::node::client::DeploymentSecret>,
) -> io::Result<()> {
    remove(folder)?;
    let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
    make(folder)?;
    if let Some(values) = deployment {
        let folder = folder.join("deployment");
        make(&folder)?;
        for (key, value) in values {
            lay(&folder.join(key), value)?;
        }
    }
    Ok(())
}

/// Removes a folder, if it is there.
pub(in crate::node) fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

async fn run(mut command: Command, item: &StateItem, bench: &Bench<'_>, limit: Duration) -> ItemOutcome {
    let started = (|| {
        let (reader, writer) = io::pipe()?;
        let output = pipe::Receiver::from_owned_fd(reader.into())?;
        let child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
        // Its ends of the pipe close with it.
        drop(command);
        Ok::<_, io::Error>((output, child))
    })();
    let (mut pipe, mut child) = match started {
        Ok(started) => started,
        Err(error) => return ItemOutcome::failed(NOT_RUN, format!("cannot be started: {error}")),
    };
    (bench.tell)(NodeEffect::Begun);
    let mut output = StepOutput::to(&bench.outputs, &item.name, bench.deployment);
    let until = Instant::now() + limit;
    let mut piece = vec![0; 16 << 10];
    let mut is_open = true;
    let ended = loop {
        tokio::select! {
            read = pipe.read(&mut piece), if is_open => match read {
                Ok(length) if length > 0 => output.take(&piece[..length]),
                _ => is_open = false,
            },
            ended = timeout_at(until, child.wait()) => break ended,
        }
    };
    let code = match ended {
        Ok(Ok(status)) => {
            (bench.tell)(NodeEffect::Ended);
            let rest = async {
                while let Ok(length) = pipe.read(&mut piece).await {
                    if length == 0 {
                        break;
                    }
                    output.take(&piece[..length]);
                }
            };
            if is_open {
                timeout(DRAIN, rest).await.ok();
            }
            code_of(status)
        }
        Ok(Err(error)) => {
            output.say(&format!("its end cannot be known: {error}"));
            NOT_RUN
        }
        Err(_) => {
            // Its group, and whatever has left it.
            if let Err(error) = bench.processes.end(bench.grace).await {
                output.say(&error.to_string());
            }
            timeout(DRAIN, child.wait()).await.ok();
            output.say(&too_long(limit));
            TOOK_TOO_LONG
        }
    };
    let result = result(&bench.scratch.join("result"), &mut output);
    ItemOutcome { code, text: output.last(), result }
}

fn code_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(NOT_RUN)
}

/// What the program found out.
fn result(path: &Path, output: &mut StepOutput) -> Option<Value> {
    let text = match bounded_files::read(path, MAX_RESULT as u64) {
        Ok(text) if text.is_empty() => return None,
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            output.say(&format!("the result is not taken: {error}"));
            return None;
        }
    };
    match serde_json::from_slice::<Value>(&text) {
        Ok(value) if values(&value) <= MAX_VALUES && !value.is_null() => Some(without_nulls(value)),
        Ok(_) => {
            output.say(&format!("the result is not taken: it has more than {MAX_VALUES} values, or none"));
            None
        }
        Err(error) => {
            output.say(&format!("the result is not taken: it is no JSON: {error}"));
            None
        }
    }
}

fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(values).sum(),
        Value::Object(map) => map.values().map(values).sum(),
        _ => 0,
    }
}
