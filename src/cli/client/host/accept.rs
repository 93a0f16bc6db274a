//! `host accept`: a machine that reported itself is taken into use.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::super::connect::ServerArgs;
use super::super::table::harmless;
use super::super::types::{hosts, secrets};
use super::super::{missing, request};
use super::many::{OutcomeForm, say_one};
use super::verbs::annotation;
use crate::api::slipway::{ANNOTATION_DISCOVERED, DISCOVERED_PENDING};
use crate::cli::failure::usage;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway host accept discovered-7xkq2m3 --bmc-address redfish://10.1.0.5 --bmc-username admin --bmc-password-file -
  slipway host accept discovered-7xkq2m3 --bmc-address ipmi://10.1.0.5 --credentials rack-bmc --keep-disks
  slipway host accept discovered-7xkq2m3 --externally-provisioned")]
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
    /// Name of the host
    #[arg(value_name = "HOST")]
    name: String,
    #[command(flatten)]
    form: OutcomeForm,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(accept: Accept, out: &mut dyn Write) -> anyhow::Result<()> {
    let password = match &accept.bmc_password_file {
        Some(file) if file.as_os_str() == "-" => Some(std::io::read_to_string(std::io::stdin())?),
        Some(file) => Some(std::fs::read_to_string(file).with_context(|| file.display().to_string())?),
        None => None,
    };
    let session = accept.server.connect().await?;
    let (of, name) = (hosts(), &accept.name);
    let path = of.path(Some(&session.namespace), Some(name));
    let host = match session.get(&path, &[], request::JSON).await {
        Err(error) if error.is_not_found() => bail!("{}", missing::explain(&session, &of, name).await),
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
    let taken = session.merge(&path, &patch).await?;
    let message = format!("accepted: {}", consequence(&taken["spec"]));
    say_one(&session.namespace, name, &message, accept.form, out)
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
    if annotation(host, ANNOTATION_DISCOVERED) != Some(DISCOVERED_PENDING) {
        let state = host["status"]["provisioning"]["state"].as_str().filter(|state| !state.is_empty());
        bail!("host {} does not wait to be accepted: it is {}", accept.name, state.unwrap_or("not looked at yet"));
    }
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
    // Of the host that was looked at: nobody else has accepted it meanwhile.
    let revision = &host["metadata"]["resourceVersion"];
    Ok(
        json!({ "metadata": { "resourceVersion": revision, "annotations": { ANNOTATION_DISCOVERED: null } }, "spec": spec }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        accept: Accept,
    }

    fn accepting(words: &[&str]) -> Accept {
        Line::try_parse_from([&["slipway", "h"], words].concat()).expect("understood").accept
    }

    #[test]
    fn accepting_keeps_what_is_known_and_asks_for_what_is_not() {
        let waiting = json!({ "annotations": { ANNOTATION_DISCOVERED: DISCOVERED_PENDING } });
        let host = |bmc: Value| json!({ "metadata": waiting, "spec": { "online": false, "bmc": bmc } });
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

    #[test]
    fn what_does_not_wait_to_be_accepted_is_refused() {
        let mut host = json!({ "spec": { "bmc": { "address": "ipmi://10.0.0.5", "credentialsName": "s" } } });
        let error = |host: &Value| acceptance(host, &accepting(&[]), None).expect_err("refused").to_string();
        assert_eq!(error(&host), "host h does not wait to be accepted: it is not looked at yet");
        host["status"] = json!({ "provisioning": { "state": "provisioned" } });
        host["metadata"] = json!({ "annotations": { ANNOTATION_DISCOVERED: "accepted" } });
        assert_eq!(error(&host), "host h does not wait to be accepted: it is provisioned");
    }
}
