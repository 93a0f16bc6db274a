//! `host`: what one does with a machine, each a change of its BareMetalHost that kubectl could make as well.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use futures::io::AsyncReadExt;
use serde_json::{Value, json};

use super::connect::{Server, Session};
use super::table::harmless;
use super::types::Type;
use super::{migration, request, resume};
use crate::api::metal3::{ANNOTATION_INSPECT, ANNOTATION_REBOOT};
use crate::api::slipway::ANNOTATION_DISCOVERED;
use crate::cli::failure::usage;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Command {
    /// Power a host on or off (sets spec.online)
    Power {
        #[command(flatten)]
        which: Which,
        /// on or off
        state: Power,
    },
    /// Reboot a host once
    Reboot {
        /// Cut the power instead of asking the operating system to shut down
        #[arg(long)]
        hard: bool,
        #[command(flatten)]
        which: Which,
    },
    /// Inspect an available host again
    Inspect {
        #[command(flatten)]
        which: Which,
    },
    /// Take a discovered host into use
    ///
    /// Stores the address and credentials of its BMC where they are missing, and removes the annotation that holds it back.
    /// Slipway then registers and inspects the host, ERASES the partition tables and signatures of ALL ITS DISKS, and makes
    /// it available. With --externally-provisioned the machine keeps the system that runs on it; with --keep-disks it is
    /// inspected and nothing is erased.
    Accept(Accept),
    /// Move hosts to another server, with their status, while their machines keep running
    ///
    /// Each host is detached here, copied with its status, Secrets, HardwareData and DataImage, and deleted here once the
    /// copy is complete; only then does the other server act on it. The machine itself is not touched. After an
    /// interruption, run the same command again.
    Move(migration::Options),
    /// Print the log of a host's ramdisk, of its last boot or an earlier one
    Log(Log),
    /// Resume hosts that `slipway restore` paused
    ///
    /// Check their machines first: Slipway continues where the backup left off. A host that was being worked on, or was to
    /// be, is resumed only by its name, because its machine may be installed or erased again.
    Resume(resume::Options),
}

#[derive(clap::Args)]
pub(in crate::cli) struct Which {
    /// Name of the host
    name: String,
    #[command(flatten)]
    server: Server,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Power {
    On,
    Off,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Accept {
    /// Address of the BMC, as redfish://10.1.0.5 or ipmi://10.1.0.5
    #[arg(long, value_name = "URL")]
    bmc_address: Option<String>,
    /// Existing Secret with the BMC's username and password
    #[arg(long, value_name = "SECRET", conflicts_with_all = ["bmc_username", "bmc_password_file"])]
    credentials: Option<String>,
    /// User name of the BMC; with --bmc-password-file a Secret NAME-bmc is created
    #[arg(long, value_name = "USER", requires = "bmc_password_file")]
    bmc_username: Option<String>,
    /// File with the BMC's password; - reads standard input
    #[arg(long, value_name = "FILE", requires = "bmc_username")]
    bmc_password_file: Option<PathBuf>,
    /// Keep the system that runs on the machine, and power it on: no inspection, nothing is erased
    /// (spec.externallyProvisioned)
    #[arg(long)]
    externally_provisioned: bool,
    /// Erase nothing, now and later (spec.automatedCleaningMode: disabled)
    #[arg(long)]
    keep_disks: bool,
    /// Accept any certificate of the BMC
    #[arg(long)]
    insecure: bool,
    /// Also power it on
    #[arg(long)]
    online: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Log {
    /// Boot to print, by the generation of the boot intent [default: the last one]
    #[arg(long, value_name = "N")]
    boot: Option<i64>,
    /// Print the boot before the last one
    #[arg(long, short, conflicts_with = "boot")]
    previous: bool,
    /// Keep printing new lines until the boot is over
    #[arg(long, short)]
    follow: bool,
    /// Print only the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// List the boots that have a log
    #[arg(long, conflicts_with_all = ["boot", "previous", "follow", "tail"])]
    list: bool,
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::Power { which, state } => {
            let done = if state == Power::On { "wanted on" } else { "wanted off" };
            change(&which, &json!({ "spec": { "online": state == Power::On } }), done, out).await
        }
        Command::Reboot { which, hard } => {
            let value = if hard { json!({ "mode": "hard" }).to_string() } else { String::new() };
            annotate(&which, ANNOTATION_REBOOT, &value, "is to reboot", out).await
        }
        Command::Inspect { which } => annotate(&which, ANNOTATION_INSPECT, "", "is to be inspected", out).await,
        Command::Accept(accept) => self::accept(accept, out).await,
        Command::Move(options) => migration::run(options, out).await,
        Command::Log(log) => self::log(log, out).await,
        Command::Resume(options) => resume::run(options, out).await,
    }
}

/// Where BareMetalHosts are.
pub(super) fn hosts() -> Type {
    Type {
        group: "metal3.io".into(),
        version: "v1alpha1".into(),
        kind: "BareMetalHost".into(),
        plural: "baremetalhosts".into(),
        singular: "baremetalhost".into(),
        namespaced: true,
        preferred: true,
        ..Type::default()
    }
}

/// Where Secrets are.
pub(super) fn secrets() -> Type {
    Type { version: "v1".into(), kind: "Secret".into(), plural: "secrets".into(), namespaced: true, ..Type::default() }
}

async fn change(which: &Which, patch: &Value, done: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let session = which.server.connect().await?;
    write(&session, &which.name, patch).await?;
    Ok(writeln!(out, "host {} {done}", which.name)?)
}

async fn annotate(which: &Which, key: &str, value: &str, done: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    change(which, &json!({ "metadata": { "annotations": { key: value } } }), done, out).await
}

async fn write(session: &Session, name: &str, patch: &Value) -> anyhow::Result<Value> {
    let of = hosts();
    match session.merge(&of.path(Some(&session.namespace), Some(name)), patch).await {
        Err(error) if error.is_not_found() => bail!("{}", super::missing::explain(session, &of, name).await),
        written => Ok(written?),
    }
}

async fn accept(accept: Accept, out: &mut dyn Write) -> anyhow::Result<()> {
    let password = match &accept.bmc_password_file {
        Some(file) if file.as_os_str() == "-" => Some(std::io::read_to_string(std::io::stdin())?),
        Some(file) => Some(std::fs::read_to_string(file).with_context(|| file.display().to_string())?),
        None => None,
    };
    let session = accept.which.server.connect().await?;
    let (of, name) = (hosts(), &accept.which.name);
    let path = of.path(Some(&session.namespace), Some(name));
    let host = match session.get(&path, &[], request::JSON).await {
        Err(error) if error.is_not_found() => bail!("{}", super::missing::explain(&session, &of, name).await),
        host => host?,
    };
    let made = accept.bmc_username.as_ref().map(|_| format!("{name}-bmc"));
    let patch = acceptance(&host, &accept, made.as_deref())?;
    if let (Some(secret), Some(username), Some(password)) = (&made, &accept.bmc_username, &password) {
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": secret, "namespace": session.namespace },
            "stringData": { "username": username, "password": password.trim_end_matches(['\r', '\n']) },
        });
        let path = secrets().path(Some(&session.namespace), Some(secret));
        session.apply(&path, &[("fieldManager", "slipway"), ("force", "true")], &object).await?;
    }
    let taken = write(&session, name, &patch).await?;
    Ok(writeln!(out, "host {name} accepted: {}", consequence(&taken["spec"]))?)
}

/// What comes of accepting a host.
fn consequence(spec: &Value) -> String {
    let bmc = spec["bmc"]["address"].as_str().unwrap_or_default();
    let fate = if spec["externallyProvisioned"] == true {
        "it keeps its system, and is powered on"
    } else if spec["automatedCleaningMode"] == "disabled" {
        "it will be inspected, its disks are kept"
    } else {
        "it will be inspected, and ALL ITS DISKS ERASED"
    };
    format!("{fate} (BMC {})", harmless(bmc))
}

/// The change that accepts a host; `made` is the Secret that is made for it.
fn acceptance(host: &Value, accept: &Accept, made: Option<&str>) -> anyhow::Result<Value> {
    let known = &host["spec"]["bmc"];
    let text = |field: &str| known[field].as_str().filter(|text| !text.is_empty());
    let Some(address) = accept.bmc_address.as_deref().or(text("address")) else {
        return Err(usage("the address of the BMC is not known: give --bmc-address"));
    };
    let Some(credentials) = accept.credentials.as_deref().or(made).or(text("credentialsName")) else {
        return Err(usage("give --credentials SECRET, or --bmc-username and --bmc-password-file"));
    };
    let mut bmc = json!({ "address": address, "credentialsName": credentials });
    if accept.insecure {
        bmc["disableCertificateVerification"] = true.into();
    }
    let mut spec = json!({ "bmc": bmc });
    // A machine that is taken over with its system is wanted to run it.
    if accept.online || accept.externally_provisioned {
        spec["online"] = true.into();
    }
    if accept.externally_provisioned {
        spec["externallyProvisioned"] = true.into();
    }
    if accept.keep_disks {
        spec["automatedCleaningMode"] = "disabled".into();
    }
    Ok(json!({ "metadata": { "annotations": { ANNOTATION_DISCOVERED: null } }, "spec": spec }))
}

async fn log(log: Log, out: &mut dyn Write) -> anyhow::Result<()> {
    let session = log.which.server.connect().await?;
    let of = hosts();
    let path = format!("{}/log", of.path(Some(&session.namespace), Some(&log.which.name)));
    let boot = log.boot.map(|boot| boot.to_string()).unwrap_or_default();
    let tail = log.tail.map(|tail| tail.to_string()).unwrap_or_default();
    let flag = |flag: bool| if flag { "true" } else { "" };
    let query = [
        ("boot", boot.as_str()),
        ("previous", flag(log.previous)),
        ("follow", flag(log.follow)),
        ("tailLines", &tail),
        ("list", flag(log.list)),
    ];
    let mut body = Box::pin(session.text(&path, &query).await?);
    let mut buffer = vec![0; 16 << 10];
    let mut rest = Vec::new();
    loop {
        let read = body.read(&mut buffer).await?;
        rest.extend_from_slice(&buffer[..read]);
        // Whole lines, without anything that a terminal would obey.
        let end =
            if read == 0 { rest.len() } else { rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        for line in String::from_utf8_lossy(&rest[..end]).lines() {
            writeln!(out, "{}", harmless(line))?;
        }
        out.flush()?;
        rest.drain(..end);
        if read == 0 {
            return Ok(());
        }
    }
}

impl Session {
    /// A body of text, as it comes.
    async fn text(&self, path: &str, query: request::Query<'_>) -> anyhow::Result<impl futures::AsyncRead + use<>> {
        let request = http::Request::get(request::uri(path, query)).body(Vec::new())?;
        match self.client.request_stream(request).await {
            Err(kube::Error::Api(status)) => Err(super::errors::RequestError::Refused(status).into()),
            Err(error) => bail!("{}", super::errors::unreachable(self, &error)),
            // The stream is one of buffered lines; here it is only read.
            Ok(body) => Ok(Box::pin(body) as std::pin::Pin<Box<dyn futures::AsyncRead + Send>>),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    fn accepting(words: &[&str]) -> Accept {
        let line = Line::try_parse_from([&["slipway", "accept", "h"], words].concat()).expect("understood");
        match line.command {
            Command::Accept(accept) => accept,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn accepting_keeps_what_is_known_and_asks_for_what_is_not() {
        let host = |bmc: Value| json!({ "spec": { "online": false, "bmc": bmc } });
        let nothing = host(Value::Null);
        let address = host(json!({ "address": "ipmi://10.0.0.5", "credentialsName": "" }));
        let both = host(json!({ "address": "ipmi://10.0.0.5", "credentialsName": "rule" }));
        let bmc = |host: &Value, words: &[&str], made: Option<&str>| {
            acceptance(host, &accepting(words), made).map(|patch| patch["spec"]["bmc"].clone())
        };
        assert!(bmc(&nothing, &["--credentials", "s"], None).is_err());
        assert!(bmc(&address, &[], None).is_err());
        let wanted = json!({ "address": "ipmi://10.0.0.5", "credentialsName": "rule" });
        assert_eq!(bmc(&both, &[], None).expect("enough"), wanted);
        let made = bmc(&address, &["--bmc-username", "u", "--bmc-password-file", "f", "--insecure"], Some("h-bmc"));
        let wanted =
            json!({ "address": "ipmi://10.0.0.5", "credentialsName": "h-bmc", "disableCertificateVerification": true });
        assert_eq!(made.expect("enough"), wanted);
        let other = ["--bmc-address", "redfish://10.0.0.6", "--credentials", "s", "--online"];
        let patch = acceptance(&both, &accepting(&other), None).expect("enough");
        assert_eq!(patch["spec"]["bmc"], json!({ "address": "redfish://10.0.0.6", "credentialsName": "s" }));
        assert_eq!(patch["spec"]["online"], true);
        assert_eq!(
            (&patch["spec"]["externallyProvisioned"], &patch["spec"]["automatedCleaningMode"]),
            (&Value::Null, &Value::Null)
        );
        assert!(consequence(&patch["spec"]).contains("ALL ITS DISKS ERASED (BMC redfish://10.0.0.6)"));
        for (word, field, value, said) in [
            ("--externally-provisioned", "externallyProvisioned", json!(true), "keeps its system"),
            ("--keep-disks", "automatedCleaningMode", json!("disabled"), "disks are kept"),
        ] {
            let patch = acceptance(&both, &accepting(&[word]), None).expect("enough");
            assert_eq!(patch["spec"][field], value);
            assert!(consequence(&patch["spec"]).contains(said), "{word}");
        }
        assert_eq!(patch["metadata"]["annotations"], json!({ ANNOTATION_DISCOVERED: null }));
    }
}
