//! Calls of `helm`: arguments, bounds, answers (<https://helm.sh/docs/helm/>).

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::login::LoginFiles;
use super::plan::{Installed, namespace};
use crate::api::lcm::{HelmRelease, HelmRepository};

/// Label of Helm's own records: the bundle that brought a Helm release.
pub(super) const LABEL_BUNDLE: &str = "slipway.dev/bundle";
/// Most bytes of an answer that are kept; manifests are not among what is asked for.
const MOST: u64 = 8 << 20;
/// Longest reason that is told, in characters.
const REASON: usize = 1000;
/// Longest notes that are told, in characters.
const NOTES: usize = 4000;
/// How long a question may take.
const QUESTION: Duration = Duration::from_secs(60);
/// What helm may take beyond the time that it is told to wait: it takes back what failed.
const GRACE: Duration = Duration::from_secs(120);

/// The program, and how it is called.
#[derive(Clone, Debug)]
pub struct Helm {
    /// Where it is.
    pub program: PathBuf,
    /// Kubeconfig of the cluster; without one it is the cluster that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// Folder for what it fetches.
    pub scratch: PathBuf,
    /// Folder with logins of repositories; without one there are none.
    pub logins: Option<PathBuf>,
    /// How long it waits for what a chart made.
    pub timeout: Duration,
}

/// What became of an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Upgraded {
    /// Helm's revision.
    pub revision: i64,
    /// Helm's word for it.
    pub status: String,
    /// The chart's version.
    pub version: String,
    /// What the chart says to people.
    pub notes: String,
}

/// Why helm did not do what it was to do, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct HelmFault(String);

impl HelmFault {
    fn of(text: impl AsRef<str>) -> Self {
        Self(shortened(text.as_ref(), REASON))
    }
}

/// The last so many characters, in lines that a terminal can show.
fn shortened(text: &str, most: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect();
    let clean = clean.trim();
    let count = clean.chars().count();
    match count > most {
        true => format!("…{}", clean.chars().skip(count - most).collect::<String>()),
        false => clean.to_owned(),
    }
}

/// Arguments that install a Helm release or upgrade it.
fn upgrade(
    release: &HelmRelease,
    (repository, login): (Option<&HelmRepository>, Option<&LoginFiles>),
    bundle: &str,
    timeout: Duration,
) -> Vec<String> {
    let mut words: Vec<String> =
        ["upgrade", "--install", "--create-namespace", "--atomic", "--history-max", "10"].map(String::from).into();
    words.extend(["--output".into(), "json".into(), "--values".into(), "-".into()]);
    words.extend([
        "--timeout".into(),
        format!("{}s", timeout.as_secs()),
        "--namespace".into(),
        namespace(release).into(),
    ]);
    let own = [format!("{LABEL_BUNDLE}={bundle}")];
    let labels =
        release.labels.iter().filter(|(key, _)| *key != LABEL_BUNDLE).map(|(key, value)| format!("{key}={value}"));
    words.extend(["--labels".into(), own.into_iter().chain(labels).collect::<Vec<_>>().join(",")]);
    if !release.version.is_empty() {
        words.extend(["--version".into(), release.version.clone()]);
    }
    let chart = if !release.chart_url.is_empty() {
        release.chart_url.clone()
    } else {
        let (_, name) = release.chart.split_once('/').unwrap_or(("", &release.chart));
        match repository.map(|found| (found, found.url.trim_end_matches('/'))) {
            Some((_, url)) if url.starts_with("oci://") => {
                words.extend(login.into_iter().flat_map(LoginFiles::registry));
                format!("{url}/{name}")
            }
            Some((found, url)) => match login {
                Some(login) => {
                    words.extend(login.repository());
                    format!("{}/{name}", found.name)
                }
                None => {
                    words.extend(["--repo".into(), url.into()]);
                    name.into()
                }
            },
            None => name.into(),
        }
    };
    words.extend(["--".into(), release.name.clone(), chart]);
    words
}

/// A Helm release as `helm list --output json` has it.
#[derive(Deserialize)]
struct Listed {
    name: String,
    namespace: String,
    revision: String,
    status: String,
}

/// A Helm release as `helm upgrade --output json` has it, in part.
#[derive(Deserialize)]
struct ReleaseAnswer {
    #[serde(default)]
    version: i64,
    #[serde(default)]
    info: Info,
    #[serde(default)]
    chart: ReleasedChart,
}

#[derive(Default, Deserialize)]
struct Info {
    #[serde(default)]
    status: String,
    #[serde(default)]
    notes: String,
}

#[derive(Default, Deserialize)]
struct ReleasedChart {
    #[serde(default)]
    metadata: ReleasedChartMetadata,
}

#[derive(Default, Deserialize)]
struct ReleasedChartMetadata {
    #[serde(default)]
    version: String,
}

impl Helm {
    /// Helm releases of all namespaces, whatever state they are in.
    ///
    /// # Errors
    /// What helm says.
    pub(super) async fn list(&self, bundle: &str) -> Result<Vec<Installed>, HelmFault> {
        let listed = async |selector: Option<String>| -> Result<Vec<Listed>, HelmFault> {
            let mut words: Vec<String> =
                ["list", "--all", "--all-namespaces", "--max", "0", "--output", "json"].map(String::from).into();
            words.extend(selector.into_iter().flat_map(|selector| ["--selector".into(), selector]));
            let text = self.call(&words, None, QUESTION).await?;
            serde_json::from_str(&text)
                .map_err(|error| HelmFault::of(format!("helm list gave something else: {error}")))
        };
        let ours = listed(Some(format!("{LABEL_BUNDLE}={bundle}"))).await?;
        let of = |there: &Listed| (there.name.clone(), there.namespace.clone());
        let ours: Vec<_> = ours.iter().map(of).collect();
        let all = listed(None).await?.into_iter().map(|there| Installed {
            is_ours: ours.contains(&of(&there)),
            revision: there.revision.parse().unwrap_or_default(),
            name: there.name,
            namespace: there.namespace,
            status: there.status,
        });
        Ok(all.collect())
    }

    /// Installs a Helm release or upgrades it, and waits until what it made runs. What failed is taken back.
    ///
    /// # Errors
    /// What helm says.
    pub(super) async fn upgrade(
        &self,
        release: &HelmRelease,
        repository: Option<&HelmRepository>,
        bundle: &str,
    ) -> Result<Upgraded, HelmFault> {
        let values = release.values.clone().unwrap_or_else(|| Value::Object(serde_json::Map::new())).to_string();
        let login = self.login(release, repository).await?;
        let words = upgrade(release, (repository, login.as_ref()), bundle, self.timeout);
        let done = self.call(&words, Some(values), self.timeout + GRACE).await;
        let text = done.map_err(|fault| unready(fault, &release.namespace, self.timeout))?;
        let answer: ReleaseAnswer = serde_json::from_str(&text)
            .map_err(|error| HelmFault::of(format!("helm upgrade gave something else: {error}")))?;
        Ok(Upgraded {
            revision: answer.version,
            status: answer.info.status,
            version: answer.chart.metadata.version,
            notes: shortened(&answer.info.notes, NOTES),
        })
    }

    /// The login of a chart's repository, where it wants one; helm knows the repository by then.
    async fn login(
        &self,
        release: &HelmRelease,
        repository: Option<&HelmRepository>,
    ) -> Result<Option<LoginFiles>, HelmFault> {
        let wants = |found: &&HelmRepository| !found.auth_secret.is_empty() && release.chart_url.is_empty();
        let Some(found) = repository.filter(wants) else { return Ok(None) };
        let Some(logins) = &self.logins else {
            return Err(HelmFault::of(format!(
                "the repository {:?} wants a login, and there is no --logins",
                found.name
            )));
        };
        let login = LoginFiles::new(logins, &self.scratch, found).map_err(HelmFault::of)?;
        if !found.url.starts_with("oci://") {
            let mut words = vec!["repo".to_owned(), "update".to_owned(), found.name.clone()];
            words.extend(login.repository());
            self.call(&words, None, QUESTION).await?;
        }
        Ok(Some(login))
    }

    /// Installs a chart that is a file, or upgrades it, and waits until what it made runs.
    ///
    /// # Errors
    /// What helm says.
    pub(super) async fn install(
        &self,
        name: &str,
        namespace: &str,
        chart: &Path,
        values: &Value,
    ) -> Result<(), HelmFault> {
        let timeout = format!("{}s", self.timeout.as_secs());
        let path = chart.display().to_string();
        let words = ["upgrade", "--install", "--atomic", "--history-max", "10", "--values", "-", "--timeout", &timeout];
        let words = [&words[..], &["--namespace", namespace, "--", name, &path]].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        self.call(&words, Some(values.to_string()), self.timeout + GRACE).await.map(drop)
    }

    /// Goes back to the revision before.
    ///
    /// # Errors
    /// What helm says.
    pub(super) async fn roll_back(&self, name: &str, namespace: &str) -> Result<(), HelmFault> {
        self.end(&["rollback", "--namespace", namespace], name).await
    }

    /// Takes a Helm release away.
    ///
    /// # Errors
    /// What helm says.
    pub(super) async fn uninstall(&self, name: &str, namespace: &str) -> Result<(), HelmFault> {
        self.end(&["uninstall", "--ignore-not-found", "--namespace", namespace], name).await
    }

    async fn end(&self, words: &[&str], name: &str) -> Result<(), HelmFault> {
        let timeout = format!("{}s", self.timeout.as_secs());
        let words = [words, &["--wait", "--timeout", &timeout, "--", name]].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        self.call(&words, None, self.timeout + GRACE).await.map(drop)
    }

    async fn call(&self, words: &[String], input: Option<String>, deadline: Duration) -> Result<String, HelmFault> {
        let mut command = Command::new(&self.program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        for (variable, folder) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data"), ("TMPDIR", "")]
        {
            command.env(variable, self.scratch.join(folder));
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        let begun = command.spawn();
        let mut child =
            begun.map_err(|error| HelmFault::of(format!("cannot run {}: {error}", self.program.display())))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let told = async {
            if let Some(mut stdin) = stdin {
                // One that does not read it says why when it ends.
                stdin.write_all(input.unwrap_or_default().as_bytes()).await.ok();
            }
        };
        let work = async { tokio::join!(told, all_of(stdout), all_of(stderr), child.wait()) };
        let Ok(((), out, err, ended)) = tokio::time::timeout(deadline, work).await else {
            return Err(HelmFault::of(format!("helm {} took longer than {} s", words[0], deadline.as_secs())));
        };
        match ended {
            Ok(status) if status.success() => Ok(out),
            Ok(status) if err.trim().is_empty() => Err(HelmFault::of(format!("helm {} ended with {status}", words[0]))),
            Ok(_) => Err(HelmFault::of(err.trim().trim_start_matches("Error: "))),
            Err(error) => Err(HelmFault::of(format!("cannot wait for helm: {error}"))),
        }
    }
}

/// What helm says of what was not ready in time, with where to look: helm names neither.
fn unready(fault: HelmFault, namespace: &str, timeout: Duration) -> HelmFault {
    let text = fault.to_string();
    let ends = ["context deadline exceeded", "timed out waiting for the condition"];
    if !text.contains("due to atomic being set") || !ends.iter().any(|end| text.ends_with(end)) {
        return fault;
    }
    let within = timeout.as_secs();
    HelmFault::of(format!(
        "{text}: what the chart makes was not ready within {within} s; `kubectl get events -n {namespace}` in the cluster may say why"
    ))
}

/// What comes, to the bound; the rest is read and left out, or whoever writes it would wait.
async fn all_of(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut from) = from else { return String::new() };
    let mut kept = Vec::new();
    (&mut from).take(MOST).read_to_end(&mut kept).await.ok();
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await.ok();
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_named_by_its_repository_its_registry_or_its_url() {
        let of = |url: &str| HelmRepository { name: "ours".into(), url: url.into(), ..HelmRepository::default() };
        let release = HelmRelease {
            name: "web".into(),
            chart: "ours/nginx".into(),
            version: "1.2.3".into(),
            labels: [("team".to_owned(), "a".to_owned()), (LABEL_BUNDLE.to_owned(), "theirs".to_owned())].into(),
            ..HelmRelease::default()
        };
        let ends = |words: Vec<String>, wanted: &str| assert!(words.join(" ").ends_with(wanted), "{words:?}");
        let minute = Duration::from_secs(60);
        ends(
            upgrade(&release, (Some(&of("http://192.0.2.1/c/")), None), "edge", minute),
            "--version 1.2.3 --repo http://192.0.2.1/c -- web nginx",
        );
        ends(
            upgrade(&release, (Some(&of("oci://192.0.2.1/c")), None), "edge", minute),
            "--version 1.2.3 -- web oci://192.0.2.1/c/nginx",
        );
        let by_url = HelmRelease { chart_url: "https://192.0.2.1/x.tgz".into(), ..release };
        let words = upgrade(&by_url, (None, None), "edge", minute);
        assert!(words.contains(&format!("{LABEL_BUNDLE}=edge,team=a")), "{words:?}");
        ends(words, "-- web https://192.0.2.1/x.tgz");
    }

    #[test]
    fn a_reason_is_its_end_without_what_a_terminal_acts_on() {
        assert_eq!(shortened("a\u{1b}[2Jb\nc ", 10), "a [2Jb\nc");
        assert_eq!(shortened("abcdef", 3), "…def");
    }
}
