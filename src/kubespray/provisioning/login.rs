//! Opens a machine that others installed to a cluster's key, once, with a password: by OpenSSH's client, which Ansible uses, too.
//!
//! The password is given by `SSH_ASKPASS` (ssh(1)) out of the client's own environment, and to sudo on standard input: it is in no file and
//! on no command line. What is run over there makes the user that user data makes elsewhere, and can be run again.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::cluster_inventory::USER;
use crate::api::bpa::LABEL_SSH_LOGIN;
use crate::cluster::workload::brief;
use crate::files;
use crate::kubespray::runs::PATH;

/// Type of Secrets with a name and a password, and its keys.
/// <https://kubernetes.io/docs/concepts/configuration/secret/#basic-authentication-secret>
const TYPE: &str = "kubernetes.io/basic-auth";
const NAME: &str = "username";
const PASSWORD: &str = "password";
/// Where SSH is answered.
const PORT: u16 = 22;
/// Longest name of a user (useradd(8)).
const NAME_MAX: usize = 32;
/// Longest password, in bytes.
const PASSWORD_MAX: usize = 1024;
/// How long the whole may take: a machine that is busy makes a user within seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is read of what a machine says.
const SAYS_MAX: u64 = 8 << 10;
/// Longest file of host keys that is read back, in bytes.
const KNOWN_MAX: u64 = 64 << 10;
/// How ssh ends when it is not the command over there that failed.
const OWN_FAULT: i32 = 255;
/// The client.
const SSH: &str = "ssh";
const ASKPASS: &str = "#!/bin/sh\nprintf '%s\\n' \"$SLIPWAY_SSH_PASSWORD\"\n";

/// Opens the machine at an address, as [`open`].
pub type Opener = Arc<
    dyn for<'a> Fn(IpAddr, &'a SshLogin, &'a str, &'a str, &'a Path) -> BoxFuture<'a, Result<String, LoginError>>
        + Send
        + Sync,
>;

/// By SSH.
pub fn ssh() -> Opener {
    Arc::new(|address, login, public, known, above| {
        Box::pin(open(SocketAddr::new(address, PORT), login, public, known, above))
    })
}

/// Who may log in.
pub struct SshLogin {
    user: String,
    password: SecretString,
}

impl SshLogin {
    /// Whether this is the password.
    #[cfg(test)]
    pub fn is(&self, password: &str) -> bool {
        self.password.expose_secret() == password
    }
}

/// Why a machine was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// Nobody answers, or the connection breaks: another try may do.
    #[error("{0}")]
    Unreached(String),
    /// The machine says no, or what is run there fails: another try says the same.
    #[error("{0}")]
    Refused(String),
}

/// The login in a Secret whose writer let it be used for this. Pure.
///
/// # Errors
///
/// When it is not meant for this, or cannot be one.
pub fn login(secret: &Secret) -> Result<SshLogin, String> {
    let name = secret.name_any();
    // Whoever may write a Provisioning is not by that somebody who may have any Secret sent to a machine.
    if secret.type_.as_deref() != Some(TYPE) || secret.labels().get(LABEL_SSH_LOGIN).map(String::as_str) != Some("true")
    {
        return Err(format!(
            "the Secret {name} is not meant for this: it must have the type {TYPE} and the label {LABEL_SSH_LOGIN}: \"true\""
        ));
    }
    let text = |key: &str| {
        let data = secret.data.as_ref().and_then(|data| data.get(key));
        data.and_then(|data| std::str::from_utf8(&data.0).ok())
    };
    let user = text(NAME).filter(|user| is_user(user));
    let user = user.ok_or_else(|| format!("the Secret {name} has no {NAME} that can be one"))?.to_owned();
    let is_password = |text: &&str| (1..=PASSWORD_MAX).contains(&text.len()) && !text.contains(['\n', '\r', '\0']);
    let password = text(PASSWORD).filter(is_password);
    let password = password.ok_or_else(|| format!("the Secret {name} has no {PASSWORD} of one line"))?.to_owned();
    Ok(SshLogin { user, password: password.into() })
}

fn is_user(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && !name.starts_with('-') && name.bytes().all(is_letter)
}

/// What is run over there, with `key` as a line of `authorized_keys`: a kind and base64, and nothing else. Pure.
fn script(key: &str) -> String {
    let make = format!(
        "set -eu\n\
         [ -d /etc/sudoers.d ] || {{ echo there is no sudo >&2; exit 1; }}\n\
         id {USER} >/dev/null 2>&1 || useradd -m -s /bin/sh -p \"*\" {USER}\n\
         home=$(getent passwd {USER} | cut -d: -f6)\n\
         mkdir -p \"$home/.ssh\"\n\
         touch \"$home/.ssh/authorized_keys\"\n\
         grep -qxF \"{key}\" \"$home/.ssh/authorized_keys\" || echo \"{key}\" >>\"$home/.ssh/authorized_keys\"\n\
         chmod 700 \"$home/.ssh\"\n\
         chmod 600 \"$home/.ssh/authorized_keys\"\n\
         chown -R {USER}: \"$home/.ssh\"\n\
         umask 227\n\
         echo \"{USER} ALL=(ALL) NOPASSWD:ALL\" >/etc/sudoers.d/90-{USER}\n"
    );
    format!("s='{make}'; if [ \"$(id -u)\" = 0 ]; then sh -c \"$s\"; else sudo -S -p '' sh -c \"$s\"; fi")
}

/// The words of the command. Pure.
fn arguments(at: SocketAddr, user: &str, known: &Path, key: &str) -> Vec<String> {
    let known = format!("UserKnownHostsFile={}", known.display());
    let options = [
        "PreferredAuthentications=password,keyboard-interactive",
        "PubkeyAuthentication=no",
        "NumberOfPasswordPrompts=1",
        "StrictHostKeyChecking=accept-new",
        "HashKnownHosts=no",
        "UpdateHostKeys=no",
        "GlobalKnownHostsFile=/dev/null",
        known.as_str(),
        "IdentityAgent=none",
        "ControlMaster=no",
        "ConnectTimeout=10",
        "ConnectionAttempts=1",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        "LogLevel=ERROR",
    ];
    let mut words: Vec<String> = ["-F", "/dev/null", "-T", "-a", "-x"].map(str::to_owned).into();
    words.extend(options.iter().flat_map(|option| ["-o".to_owned(), (*option).to_owned()]));
    words.extend(["-l".into(), user.into(), "-p".into(), at.port().to_string(), "--".into()]);
    words.extend([at.ip().to_string(), script(key)]);
    words
}

/// Opens the machine at an address to a public key. `known` are the host keys that it must have, if any are known; gives those that it has,
/// as a `known_hosts`. `above` is a folder that only this process's user reads.
///
/// # Errors
///
/// When it is not opened.
async fn open(at: SocketAddr, login: &SshLogin, public: &str, known: &str, above: &Path) -> Result<String, LoginError> {
    let own = |error: io::Error| LoginError::Unreached(format!("ssh cannot be run on the appliance: {error}"));
    let folder = tempfile::Builder::new().prefix(".login-").tempdir_in(above).map_err(own)?;
    let (file, askpass) = (folder.path().join("known_hosts"), folder.path().join("askpass"));
    fs::write(&file, known).map_err(own)?;
    fs::write(&askpass, ASKPASS).map_err(own)?;
    fs::set_permissions(&askpass, fs::Permissions::from_mode(0o700)).map_err(own)?;
    // Without its comment, which says nothing to a machine.
    let key: Vec<&str> = public.split(' ').take(2).collect();
    let mut command = Command::new(SSH);
    command
        .args(arguments(at, &login.user, &file, &key.join(" ")))
        .env_clear()
        .envs([("PATH", PATH), ("LC_ALL", "C"), ("SSH_ASKPASS_REQUIRE", "force"), ("DISPLAY", ":")])
        .env("HOME", folder.path())
        .env("SSH_ASKPASS", &askpass)
        .env("SLIPWAY_SSH_PASSWORD", login.password.expose_secret())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(own)?;
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let asked = async {
        if let Some(mut stdin) = stdin {
            // For sudo, if it asks. A machine that hangs up says why elsewhere.
            let line = SecretString::from(format!("{}\n", login.password.expose_secret()));
            stdin.write_all(line.expose_secret().as_bytes()).await.ok();
        }
        let mut said = Vec::new();
        if let Some(stderr) = stderr {
            stderr.take(SAYS_MAX).read_to_end(&mut said).await.ok();
        }
        (child.wait().await, said)
    };
    let Ok((ended, said)) = timeout(PATIENCE, asked).await else {
        return Err(LoginError::Unreached(format!("does not come to an end within {} s", PATIENCE.as_secs())));
    };
    verdict(ended.map_err(own)?.code(), &said, login)?;
    files::read_text(&file, KNOWN_MAX).map_err(own)
}

/// What came of it.
fn verdict(code: Option<i32>, said: &[u8], login: &SshLogin) -> Result<(), LoginError> {
    if code == Some(0) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(said);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it does not say why");
    let last = brief(&last.replace(login.password.expose_secret(), "***"));
    let is_no = ["Permission denied", "Host key verification failed", "Too many authentication failures"];
    match code {
        Some(OWN_FAULT) if !is_no.iter().any(|no| text.contains(no)) => Err(LoginError::Unreached(last)),
        Some(OWN_FAULT) => Err(LoginError::Refused(format!("{} is not let in: {last}", login.user))),
        Some(_) => Err(LoginError::Refused(format!("no user can be made as {}: {last}", login.user))),
        None => Err(LoginError::Unreached("ssh was killed".into())),
    }
}

#[cfg(test)]
mod tests;
