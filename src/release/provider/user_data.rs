//! User data of a node: what puts the agent there and has it run, beside the user's own. Pure.
//!
//! Ours is a part of cloud-init's own kind, whose lists are appended to the user's (`X-Merge-Type`), so that neither takes the place of the
//! other. It is JSON, which is YAML, so that no text of anybody's is quoted by hand; what stands in the script is quoted for the shell.

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::api::lcm::AgentConfig;
use crate::hex::hex;

/// Largest user data: a Secret has no more room.
const LARGEST: usize = 1 << 20;
/// Where the agent's program is on a node.
const PROGRAM: &str = "/usr/local/lib/slipway/slipway";
/// What fetches it.
const FETCH: &str = "/usr/local/lib/slipway/fetch";
/// Its configuration.
const CONFIG: &str = "/etc/slipway/node.json";
/// Its token.
const TOKEN: &str = "/etc/slipway/node.token";
/// Its unit.
const UNIT: &str = "slipway-node.service";
/// What is in it.
const AGENT_UNIT: &str = include_str!("../../../systemd/slipway-node.service");

/// How parts are put together: lists after one another, and what the user says stays.
const MERGE: &str = "list(append)+dict(no_replace,recurse_list)+str()";

/// What an agent is to know.
#[derive(Clone, Debug)]
pub struct AgentSetup<'a> {
    /// URL of the appliance's API.
    pub server: &'a str,
    /// The appliance's CA certificate, as PEM.
    pub ca_pem: &'a str,
    /// Namespace of the LCMMachine.
    pub namespace: &'a str,
    /// Name of the LCMMachine.
    pub name: &'a str,
    /// The program, and where it is fetched from.
    pub agent: &'a AgentConfig,
}

/// Why there is no user data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserDataFault {
    /// It is for another program.
    #[error("the user data is Ignition's, and the agent is put on nodes by cloud-init: use an image with cloud-init")]
    Ignition,
    /// It is too large.
    #[error("the user data would have {0} bytes with the agent's part; a Secret has room for {LARGEST}")]
    Large(usize),
}

/// What the user data is made of besides the token, as 64 hexadecimal digits.
pub fn inputs(user: Option<&[u8]>, setup: &AgentSetup<'_>, account: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(cloud_config(setup, ""));
    digest.update([0]);
    digest.update(account);
    digest.update([0]);
    digest.update(user.unwrap_or_default());
    hex(&digest.finalize())
}

/// The user data of a node.
///
/// # Errors
///
/// Why there can be none.
pub fn render(user: Option<&[u8]>, setup: &AgentSetup<'_>, token: &str) -> Result<Vec<u8>, UserDataFault> {
    let ours = cloud_config(setup, token);
    let made = match user.filter(|user| !user.trim_ascii().is_empty()) {
        None => ours.into_bytes(),
        Some(user) => multipart(user, &ours)?,
    };
    if made.len() > LARGEST { Err(UserDataFault::Large(made.len())) } else { Ok(made) }
}

/// Our part.
fn cloud_config(setup: &AgentSetup<'_>, token: &str) -> String {
    let config = json!({
        "server": setup.server, "caCertificate": setup.ca_pem, "namespace": setup.namespace, "name": setup.name,
        "tokenFile": TOKEN,
    });
    let file = |path: &str, permissions: &str, content: &str| json!({"path": path, "owner": "root:root", "permissions": permissions, "content": content});
    let document = json!({
        "write_files": [
            file(CONFIG, "0600", &format!("{config:#}\n")),
            file(TOKEN, "0600", token),
            file("/etc/slipway/ca.pem", "0644", setup.ca_pem),
            file(FETCH, "0755", &fetch(&setup.agent.download_url, &setup.agent.sha256)),
            file(&format!("/etc/systemd/system/{UNIT}"), "0644", &unit(&setup.agent.args)),
        ],
        // Not waited for: the unit waits for what cloud-init belongs to.
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "enable", UNIT], ["systemctl", "start", "--no-block", UNIT]],
    });
    format!("#cloud-config\n{document:#}\n")
}

/// The agent's unit. What fetches the program is part of it, so that an appliance that does not answer just then is asked again.
fn unit(args: &[String]) -> String {
    let start = format!("ExecStart={PROGRAM} node --config {CONFIG}");
    let args: String = args.iter().map(|arg| format!(" {}", for_systemd(arg))).collect();
    AGENT_UNIT.replacen(&start, &format!("ExecStartPre={FETCH}\nTimeoutStartSec=600\n{start}{args}"), 1)
}

/// The script that fetches the program, checks it, and puts it into its place whole. One that is there is left: it replaces itself.
fn fetch(url: &str, sha256: &str) -> String {
    format!(
        "#!/bin/sh\n\
         # Fetches the node agent from the appliance, checks it, and puts it into its place.\n\
         set -eu\n\
         url={url}\n\
         sum={sum}\n\
         at={PROGRAM}\n\
         [ -x \"$at\" ] && exit 0\n\
         new=\"$at.new\"\n\
         trap 'rm -f \"$new\"' EXIT\n\
         if command -v curl >/dev/null; then\n\
         \tcurl -fsS --connect-timeout 10 --max-time 500 -o \"$new\" \"$url\"\n\
         elif command -v wget >/dev/null; then\n\
         \twget -q -T 60 -O \"$new\" \"$url\"\n\
         else\n\
         \tpython3 -c 'import shutil, sys, urllib.request\n\
         with urllib.request.urlopen(sys.argv[1], timeout=60) as come, open(sys.argv[2], \"wb\") as to: shutil.copyfileobj(come, to)' \"$url\" \"$new\"\n\
         fi\n\
         if ! printf '%s  %s\\n' \"$sum\" \"$new\" | sha256sum -c - >/dev/null; then\n\
         \techo \"the program at $url does not have the SHA-256 $sum\" >&2\n\
         \texit 1\n\
         fi\n\
         chmod 0755 \"$new\"\n\
         sync \"$new\" 2>/dev/null || sync\n\
         mv \"$new\" \"$at\"\n",
        url = for_shell(url),
        sum = for_shell(sha256),
    )
}

/// A text as one word of a shell.
fn for_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A text as one word of a line of systemd, which knows `%`, `$` and escapes.
fn for_systemd(text: &str) -> String {
    let escaped = text.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let plain: String = escaped.chars().filter(|c| !c.is_control()).collect();
    format!("\"{plain}\"")
}

/// The user's part, and ours after it.
fn multipart(user: &[u8], ours: &str) -> Result<Vec<u8>, UserDataFault> {
    let mut digest = Sha256::new();
    digest.update(user);
    digest.update(ours);
    // Nobody can write a text that has the checksum of itself in it.
    let boundary = format!("slipway-{}", hex(&digest.finalize()));
    let mut made =
        format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\nMIME-Version: 1.0\n\n--{boundary}\n")
            .into_bytes();
    match kind_of(user)? {
        // A message of several parts is one part as it is, with its own head.
        UserDataKind::Message => made.extend_from_slice(user),
        UserDataKind::Type(type_) => made.extend(encoded(type_, "", user)),
    }
    made.extend(format!("\n--{boundary}\n").into_bytes());
    made.extend(encoded("text/cloud-config", &format!("X-Merge-Type: {MERGE}\n"), ours.as_bytes()));
    made.extend(format!("\n--{boundary}--\n").into_bytes());
    Ok(made)
}

/// A part with its head.
fn encoded(type_: &str, more: &str, content: &[u8]) -> Vec<u8> {
    /// Letters of a line (RFC 2045 section 6.8).
    const LINE: usize = 76;
    let charset = if type_.starts_with("text/") { "; charset=\"utf-8\"" } else { "" };
    let mut part = format!("Content-Type: {type_}{charset}\nContent-Transfer-Encoding: base64\n{more}\n");
    let text = STANDARD.encode(content);
    for line in text.as_bytes().chunks(LINE) {
        _ = writeln!(part, "{}", String::from_utf8_lossy(line));
    }
    part.into_bytes()
}

/// What user data is.
#[derive(Debug, PartialEq, Eq)]
enum UserDataKind {
    /// MIME with parts of its own.
    Message,
    /// Of this type.
    Type(&'static str),
}

/// As cloud-init tells: by what it begins with.
fn kind_of(user: &[u8]) -> Result<UserDataKind, UserDataFault> {
    /// Beginnings and types; the first one that fits counts.
    const TYPES: &[(&str, &str)] = &[
        ("#include-once", "text/x-include-once-url"),
        ("#include", "text/x-include-url"),
        ("#cloud-config-archive", "text/cloud-config-archive"),
        ("#cloud-config-jsonp", "text/cloud-config-jsonp"),
        ("#cloud-config", "text/cloud-config"),
        ("#cloud-boothook", "text/cloud-boothook"),
        ("#part-handler", "text/part-handler"),
        ("## template: jinja", "text/jinja2"),
        ("#!", "text/x-shellscript"),
    ];
    if user.starts_with(&[0x1f, 0x8b]) {
        return Ok(UserDataKind::Type("application/gzip"));
    }
    let text = String::from_utf8_lossy(user);
    let begins = text.trim_start();
    if begins.starts_with('{') && begins.contains("\"ignition\"") {
        return Err(UserDataFault::Ignition);
    }
    let head = begins
        .split("\n\n")
        .next()
        .and_then(|head| head.split("\r\n\r\n").next())
        .unwrap_or_default()
        .to_ascii_lowercase();
    let is_message = ["content-type:", "mime-version:"].iter().any(|field| head.starts_with(field));
    if is_message && head.contains("content-type: multipart/") {
        return Ok(UserDataKind::Message);
    }
    let found = TYPES.iter().find(|(front, _)| begins.starts_with(front));
    Ok(UserDataKind::Type(found.map_or("text/plain", |(_, type_)| type_)))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const CA: &str = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n";

    fn agent() -> AgentConfig {
        AgentConfig {
            version: "1".into(),
            download_url: "http://10.20.0.2:80/boot/files/slipway-ab".into(),
            sha256: "ab".into(),
            args: vec![],
        }
    }

    fn with<T>(agent: &AgentConfig, then: impl FnOnce(&AgentSetup<'_>) -> T) -> T {
        then(&AgentSetup { server: "https://10.20.0.2:8443", ca_pem: CA, namespace: "proj", name: "edge-0", agent })
    }

    fn file<'v>(document: &'v Value, path: &str) -> &'v Value {
        document["write_files"].as_array().unwrap().iter().find(|file| file["path"] == path).unwrap()
    }

    fn read(text: &str) -> Value {
        serde_saphyr::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap()
    }

    #[test]
    fn the_agent_is_laid_down_and_enabled() {
        let made = with(&agent(), |setup| render(None, setup, "TOKEN").unwrap());
        let document = read(&String::from_utf8(made).unwrap());
        let token = file(&document, TOKEN);
        assert_eq!((&token["content"], &token["permissions"]), (&json!("TOKEN"), &json!("0600")));
        let config = file(&document, CONFIG);
        assert_eq!(config["permissions"], "0600");
        let config: Value = serde_json::from_str(config["content"].as_str().unwrap()).unwrap();
        let wanted = json!({"server": "https://10.20.0.2:8443", "caCertificate": CA, "namespace": "proj", "name": "edge-0",
            "tokenFile": TOKEN});
        assert_eq!(config, wanted);
        let unit = file(&document, "/etc/systemd/system/slipway-node.service")["content"].as_str().unwrap();
        assert!(
            unit.contains("\nExecStart=/usr/local/lib/slipway/slipway node --config /etc/slipway/node.json\n"),
            "{unit}"
        );
        assert!(unit.contains("\nRestart=always\n") && unit.contains("\nExecStartPre=/usr/local/lib/slipway/fetch\n"));
        let fetch = file(&document, FETCH)["content"].as_str().unwrap();
        assert!(fetch.contains("url='http://10.20.0.2:80/boot/files/slipway-ab'\nsum='ab'\n"), "{fetch}");
        assert_eq!(document["runcmd"][1], json!(["systemctl", "enable", UNIT]));
    }

    #[test]
    fn the_users_own_stands_beside_it() {
        for (user, type_) in [
            (&b"#cloud-config\nruncmd: [x]\n"[..], "text/cloud-config"),
            (b"#!/bin/sh\necho \xff\n", "text/x-shellscript"),
            (b"## template: jinja\n#cloud-config\n", "text/jinja2"),
            (b"#cloud-config-archive\n", "text/cloud-config-archive"),
            (b"#include http://x", "text/x-include-url"),
            (b"\x1f\x8b\x08x", "application/gzip"),
            (b"anything", "text/plain"),
        ] {
            let made = with(&agent(), |setup| render(Some(user), setup, "T").unwrap());
            let text = String::from_utf8(made).unwrap();
            assert!(
                text.starts_with("Content-Type: multipart/mixed; boundary=\"slipway-")
                    && text[..300].contains("MIME-Version:")
            );
            let boundary = text.split('"').nth(1).unwrap();
            let parts: Vec<&str> = text.split(&format!("--{boundary}")).collect();
            let [_, theirs, ours, end] = parts.as_slice() else { panic!("{text}") };
            assert_eq!(*end, "--\n");
            assert!(theirs.contains(&format!("Content-Type: {type_}")), "{theirs}");
            let content = |part: &str| {
                let body: String = part.split_once("\n\n").unwrap().1.split_whitespace().collect();
                STANDARD.decode(body).unwrap()
            };
            assert_eq!(content(theirs), user);
            assert!(ours.contains("X-Merge-Type: list(append)+dict(no_replace,recurse_list)+str()\n"), "{ours}");
            assert_eq!(file(&read(&String::from_utf8(content(ours)).unwrap()), TOKEN)["content"], "T");
        }
        // What has parts already is one of ours as it is.
        let message = b"Content-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b\nContent-Type: text/plain\n\nx\n--b--\n";
        let made = with(&agent(), |setup| render(Some(message), setup, "T").unwrap());
        assert!(made.windows(message.len()).any(|window| window == message));
        let ignition = br#" {"ignition": {"version": "3.4.0"}}"#;
        assert_eq!(with(&agent(), |setup| render(Some(ignition), setup, "T")), Err(UserDataFault::Ignition));
        let large = vec![b'x'; LARGEST];
        assert!(matches!(with(&agent(), |setup| render(Some(&large), setup, "T")), Err(UserDataFault::Large(_))));
    }

    #[test]
    fn nothing_in_a_release_breaks_out_of_the_script_or_the_unit() {
        let agent = AgentConfig {
            download_url: "http://x/'; rm -rf / #".into(),
            sha256: "$(reboot)".into(),
            args: vec!["--a=%n \"x\"\nExecStart=/evil".into()],
            ..agent()
        };
        let made = with(&agent, |setup| render(None, setup, "T").unwrap());
        let document = read(&String::from_utf8(made).unwrap());
        let fetch = file(&document, FETCH)["content"].as_str().unwrap();
        assert!(fetch.contains(r"url='http://x/'\''; rm -rf / #'") && fetch.contains("sum='$(reboot)'\n"), "{fetch}");
        let unit = file(&document, "/etc/systemd/system/slipway-node.service")["content"].as_str().unwrap();
        assert!(unit.contains(r#" "--a=%%n \"x\"ExecStart=/evil""#), "{unit}");
        assert_eq!(unit.lines().filter(|line| line.starts_with("ExecStart=")).count(), 1);
    }

    #[test]
    fn another_input_is_another_user_data() {
        let of =
            |user: &[u8], account: &str, agent: &AgentConfig| with(agent, |setup| inputs(Some(user), setup, account));
        let first = of(b"a", "uid", &agent());
        assert_eq!(of(b"a", "uid", &agent()), first);
        for other in [
            of(b"b", "uid", &agent()),
            of(b"a", "other", &agent()),
            of(b"a", "uid", &AgentConfig { sha256: "cd".into(), ..agent() }),
        ] {
            assert_ne!(other, first);
        }
    }
}
