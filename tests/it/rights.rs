//! Credentials from the outside: the administrator's certificate, the folder of keys, and what of it all is in the audit log.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, ListParams, ObjectMeta, PostParams, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use secrecy::ExposeSecret;
use serde_json::Value;

use crate::needs;
use crate::process::{self, Appliance, DEADLINE, until};

async fn client(kubeconfig: &str) -> Client {
    let config = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Certificate and key of a kubeconfig, as PEM.
fn credential(kubeconfig: &str) -> (String, String) {
    use base64::Engine;
    let config = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let info = config.auth_infos[0].auth_info.clone().unwrap();
    let decode =
        |text: &str| String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap();
    let key = info.client_key_data.unwrap();
    (decode(&info.client_certificate_data.unwrap()), decode(key.expose_secret()))
}

/// The organizational unit of a certificate, and the second in which it ends.
fn about(certificate: &str) -> (Option<String>, i64) {
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let (_, read) = x509_parser::parse_x509_certificate(&der).unwrap();
    let unit = read.subject().iter_organizational_unit().next().map(|unit| unit.as_str().unwrap().to_owned());
    (unit, read.validity().not_after.timestamp())
}

/// A kubeconfig with another certificate for the administrator, signed with the appliance's own CA.
fn signed(folder: &Path, kubeconfig: &str, unit: Option<&str>, ends: SystemTime) -> String {
    use base64::Engine;
    let read = |name: &str| std::fs::read_to_string(folder.join("data/pki").join(name)).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read("ca.crt"), KeyPair::from_pem(&read("ca.key")).unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = ends.into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "slipway-admin");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    if let Some(unit) = unit {
        params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
    let lines = kubeconfig.lines().map(|line| match line.trim_start().split_once(": ") {
        Some(("client-certificate-data", _)) => format!("    client-certificate-data: {}\n", encode(certificate.pem())),
        Some(("client-key-data", _)) => format!("    client-key-data: {}\n", encode(key.serialize_pem())),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

async fn namespaces(client: &Client) -> Result<usize, (u16, String)> {
    match Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await {
        Ok(list) => Ok(list.items.len()),
        Err(kube::Error::Api(status)) => Err((status.code, status.message.clone())),
        Err(error) => Err((0, format!("{error:?}"))),
    }
}

#[track_caller]
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Lines of the audit log.
fn audit(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("data/logs/audit.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_certificates_of_administrators_can_be_ended_at_once() {
    slipway::appliance::install_tls_provider();
    let mut appliance = Appliance::new().await;
    let old = appliance.client().await;
    let first = text(&appliance.slipway(&["kubeconfig"]).await);
    let second = text(&appliance.slipway(&["kubeconfig"]).await);
    assert_ne!(credential(&first).1, credential(&second).1, "each has a key of its own");
    assert!(!appliance.folder().join("data/pki/admin.key").exists(), "no administrator's key lies about");
    let (first, second) = (client(&first).await, client(&second).await);
    assert!(namespaces(&first).await.is_ok() && namespaces(&second).await.is_ok());
    let all = Api::<Namespace>::all(first.clone());
    let mut watching = Box::pin(all.watch(&WatchParams::default(), "0").await.unwrap());

    // Connections that are open end like all others, within seconds and without a restart.
    let fresh = client(&text(&appliance.slipway(&["kubeconfig", "--revoke-all"]).await)).await;
    assert!(namespaces(&fresh).await.is_ok(), "what was made with it counts at once");
    let mut told = String::new();
    for one in [&first, &second, &old] {
        told = until("the certificate is refused", async || match namespaces(one).await {
            Err((401, message)) => Some(message),
            _ => None,
        })
        .await;
    }
    assert!(told.contains("revoked") && told.contains("slipway kubeconfig"), "{told}");
    tokio::time::timeout(DEADLINE, async { while watching.next().await.is_some_and(|event| event.is_ok()) {} })
        .await
        .expect("the watch ends");
    assert!(namespaces(&fresh).await.is_ok());
    text(
        &appliance
            .slipway(&["get", "namespaces", "--config", appliance.folder().join("slipway.toml").to_str().unwrap()])
            .await,
    );
    appliance.restart(true).await;
    appliance.client().await;
    assert_eq!(namespaces(&first).await.unwrap_err().0, 401);
    assert!(namespaces(&fresh).await.is_ok());
    let log = appliance.log();
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrators_certificate_is_short_lived_and_those_of_before_are_void() {
    slipway::appliance::install_tls_provider();
    let appliance = Appliance::new().await;
    let admin = appliance.client().await;
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    let in_days = |days: u32| (now + day * days).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let kubeconfig = text(&appliance.slipway(&["kubeconfig"]).await);
    let (unit, ends) = about(&credential(&kubeconfig).0);
    assert!((in_days(29)..in_days(31)).contains(&ends), "{ends}");
    let config = appliance.folder().join("short.toml");
    let all = std::fs::read_to_string(appliance.folder().join("slipway.toml")).unwrap();
    std::fs::write(&config, all.replace("[api]", "[api]\nadmin_certificate = \"24h\"")).unwrap();
    let short = text(&appliance.slipway(&["kubeconfig", "--config", config.to_str().unwrap()]).await);
    assert!((in_days(0)..in_days(2)).contains(&about(&credential(&short).0).1));

    let unit = unit.expect("it says of which series it is");
    for (unit, ends, wanted) in [
        (Some(unit.as_str()), now + day, Ok(())),
        (None, now + day * 3650, Err("revoked")),
        (Some("slipway:00000000-0000-0000-0000-000000000000"), now + day, Err("revoked")),
        (Some(unit.as_str()), now - day, Err("ended")),
    ] {
        let other = client(&signed(appliance.folder(), &kubeconfig, unit, ends)).await;
        match (namespaces(&other).await, wanted) {
            (Ok(_), Ok(())) => {}
            (Err((401, message)), Err(reason)) => assert!(message.contains(reason), "{unit:?}: {message}"),
            (found, _) => panic!("{unit:?}: {found:?}, and not {wanted:?}"),
        }
    }
    let refused = until("each has its line", async || {
        let mut lines = audit(appliance.folder());
        lines.retain(|line| line["responseStatus"]["code"] == 401);
        (lines.len() >= 3).then_some(lines)
    })
    .await;
    assert_eq!(refused.len(), 3, "{refused:?}");
    for line in refused {
        assert_eq!(line["user"]["username"], "slipway-admin", "{line}");
        assert!(line["responseStatus"]["message"].as_str().unwrap().contains("certificate"), "{line}");
    }
    assert!(namespaces(&admin).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_read_which_secret_is_in_the_audit_log() {
    slipway::appliance::install_tls_provider();
    let appliance = Appliance::new().await;
    let admin = appliance.client().await;
    let secrets = Api::<Secret>::namespaced(admin.clone(), "default");
    let data = [("password".to_owned(), "hunter2".to_owned())].into();
    let metadata = ObjectMeta { name: Some("prize".into()), ..ObjectMeta::default() };
    let secret = Secret { metadata, string_data: Some(data), ..Secret::default() };
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    secrets.get("prize").await.unwrap();
    secrets.list(&ListParams::default()).await.unwrap();
    Api::<Secret>::all(admin.clone()).list(&ListParams::default().limit(1)).await.unwrap();
    let mut watching = Box::pin(secrets.watch(&WatchParams::default(), "0").await.unwrap());
    watching.next().await.unwrap().unwrap();
    Api::<Namespace>::all(admin.clone()).list(&ListParams::default()).await.unwrap();
    let eve = text(&appliance.slipway(&["token", "create", "eve", "-o", "kubeconfig"]).await);
    let refused = Api::<Secret>::namespaced(client(&eve).await, "default").get("prize").await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));

    let reads = until("every read has its line", async || {
        let mut lines = audit(appliance.folder());
        lines.retain(|line| matches!(line["verb"].as_str(), Some("get" | "list" | "watch")));
        (lines.len() >= 5).then_some(lines)
    })
    .await;
    let found: Vec<_> = reads
        .iter()
        .map(|line| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            assert_eq!(
                (&line["objectRef"]["resource"], &line["sourceIPs"][0]),
                (&"secrets".into(), &"127.0.0.1".into())
            );
            let of = &line["objectRef"];
            let code = line["responseStatus"]["code"].as_u64().unwrap();
            (text(&line["verb"]), text(&of["namespace"]), text(&of["name"]), text(&line["user"]["username"]), code)
        })
        .collect();
    let eve = "system:serviceaccount:slipway-system:eve";
    let wanted = [
        ("get", "default", "prize", "slipway-admin", 200),
        ("list", "default", "", "slipway-admin", 200),
        ("list", "", "", "slipway-admin", 200),
        ("watch", "default", "", "slipway-admin", 200),
        ("get", "default", "prize", eve, 403),
    ];
    let wanted: Vec<_> = wanted
        .map(|(verb, at, name, user, code)| (verb.to_owned(), at.to_owned(), name.to_owned(), user.to_owned(), code))
        .into();
    assert_eq!(found, wanted);
    assert_eq!(reads[3]["stage"], "ResponseStarted", "a watch goes on");
    assert!(!std::fs::read_to_string(appliance.folder().join("data/logs/audit.log")).unwrap().contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_logins_are_told_and_a_stranger_cannot_flood_the_audit_log() {
    slipway::appliance::install_tls_provider();
    let mut appliance = Appliance::new().await;
    appliance.client().await;
    let ca = std::fs::read(appliance.folder().join("data/pki/ca.crt")).unwrap();
    let builder = || reqwest::Client::builder().tls_certs_only([reqwest::Certificate::from_pem(&ca).unwrap()]);
    let stranger = builder().build().unwrap();
    let url = format!("https://{}/api/v1/namespaces/rack/secrets", appliance.address);
    let ask = async |token: &str| {
        let answer = stranger.get(&url).bearer_auth(token).send().await.unwrap();
        assert_eq!(answer.status(), 401);
    };
    let token = text(&appliance.slipway(&["token", "create", "gone", "--role", "view"]).await);
    text(&appliance.slipway(&["token", "revoke", "gone"]).await);
    ask(token.trim()).await;
    for _ in 0..200 {
        ask("guessed").await;
    }
    // Who shows nothing has not tried to log in.
    assert_eq!(stranger.get(&url).send().await.unwrap().status(), 401);
    // A certificate of another authority does not get through the handshake.
    let key = KeyPair::generate().unwrap();
    let foreign = CertificateParams::new(vec!["eve".to_owned()]).unwrap().self_signed(&key).unwrap();
    let both = format!("{}{}", foreign.pem(), key.serialize_pem());
    let foreign = builder().identity(reqwest::Identity::from_pem(both.as_bytes()).unwrap()).build().unwrap();
    assert!(foreign.get(&url).send().await.is_err());
    appliance.end().await;

    let lines = audit(appliance.folder());
    let failed: Vec<&Value> = lines.iter().filter(|line| line["responseStatus"]["code"] == 401).collect();
    assert!((2..=12).contains(&failed.len()), "{} lines", failed.len());
    let first = failed[0];
    assert_eq!(first["user"]["username"], "system:serviceaccount:slipway-system:gone", "{first}");
    assert_eq!((&first["verb"], &first["sourceIPs"][0]), (&"list".into(), &"127.0.0.1".into()), "{first}");
    assert_eq!(first["requestURI"], "/api/v1/namespaces/rack/secrets");
    assert!(failed[1]["user"].get("username").is_none(), "{}", failed[1]);
    // What has no line of its own is counted: 201 bad tokens and a certificate.
    let left_out = |line: &&Value| -> u64 {
        let count = line["annotations"]["slipway.dev/left-out"].as_str();
        count.map_or(0, |count| count.parse().unwrap())
    };
    let told: u64 = failed.iter().map(|line| if left_out(line) > 0 { left_out(line) } else { 1 }).sum();
    assert_eq!(told, 202, "{failed:?}");
    let text = std::fs::read_to_string(appliance.folder().join("data/logs/audit.log")).unwrap();
    assert!(!text.contains("guessed") && !text.contains(token.trim()));
}

/// A folder with a configuration, and nothing else yet.
fn site() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "data_dir = {:?}\n[api]\nlisten = \"127.0.0.1:0\"\n[boot]\nlisten = \"127.0.0.1:0\"\ntftp = \"127.0.0.1:0\"\n",
        folder.path().join("data")
    );
    std::fs::write(folder.path().join("slipway.toml"), config).unwrap();
    folder
}

fn command(folder: &Path, what: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.arg(what).arg("--config").arg(folder.join("slipway.toml")).stdin(Stdio::null());
    command
}

#[test]
fn the_first_command_makes_private_folders() {
    let folder = site();
    let mode = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    text(&command(folder.path(), "kubeconfig").output().unwrap());
    assert_eq!((mode("data"), mode("data/pki"), mode("data/pki/.lock")), (0o700, 0o700, 0o600));
    // Folders that an older version made are made private.
    std::fs::set_permissions(folder.path().join("data/pki"), std::fs::Permissions::from_mode(0o755)).unwrap();
    text(&command(folder.path(), "kubeconfig").output().unwrap());
    assert_eq!(mode("data/pki"), 0o700);
}

#[test]
fn whoever_holds_the_lock_is_named_and_nobody_waits_for_ever() {
    for what in ["kubeconfig", "serve"] {
        let folder = site();
        let pki = folder.path().join("data/pki");
        std::fs::create_dir_all(&pki).unwrap();
        std::fs::write(pki.join(".lock"), format!("{} slipway test\n", std::process::id())).unwrap();
        let held = std::fs::File::open(pki.join(".lock")).unwrap();
        held.lock().unwrap();
        let mut child = command(folder.path(), what).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let end = std::time::Instant::now() + DEADLINE;
        while child.try_wait().unwrap().is_none() {
            if std::time::Instant::now() > end {
                child.kill().ok();
                panic!("{what} waits for ever");
            }
            std::thread::sleep(process::PAUSE);
        }
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        let holder = format!("process {} (slipway test)", std::process::id());
        assert!(error.contains(".lock") && error.contains(&holder), "{what}: {error}");
    }
}

/// As root only: what another user made, and what root makes for another user.
#[test]
fn keys_belong_to_the_service_whoever_makes_them() {
    const SERVICE: u32 = 65534;
    if !needs::root() {
        eprintln!("not run: needs root");
        return;
    }
    use std::os::unix::process::CommandExt;
    let folder = site();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::chown(&data, Some(SERVICE), Some(SERVICE)).unwrap();
    text(&command(folder.path(), "kubeconfig").output().unwrap());
    let mut seen = 0;
    for entry in std::fs::read_dir(data.join("pki")).unwrap() {
        let about = entry.unwrap().metadata().unwrap();
        assert_eq!((about.uid(), about.gid()), (SERVICE, SERVICE));
        seen += 1;
    }
    assert!(seen >= 4, "{seen}");
    let as_service = |what: &str| {
        let mut command = command(folder.path(), what);
        // A program below root's own folders could not be started as another user.
        let program = folder.path().join("slipway");
        if !program.exists() {
            std::fs::hard_link(env!("CARGO_BIN_EXE_slipway"), &program)
                .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_slipway"), &program).map(drop))
                .unwrap();
        }
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new(program);
        command.args(arguments).uid(SERVICE).gid(SERVICE).stdin(Stdio::null());
        command
    };
    text(&as_service("kubeconfig").output().unwrap());
    // What cannot be used is named, with what mends it.
    std::os::unix::fs::chown(data.join("pki/ca.key"), Some(0), Some(0)).unwrap();
    for what in ["serve", "kubeconfig"] {
        let output = as_service(what).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        for part in ["pki/ca.key", "belongs to", "chown -R"] {
            assert!(error.contains(part), "{what}: {part:?} is not in: {error}");
        }
    }
}
