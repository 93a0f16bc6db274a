//! Controllers on a Kubernetes API server of somebody else's, and which of several appliances acts there.
//!
//! With `[engine] kubeconfig` the objects are in that API server instead of the embedded one. The controllers are the
//! same: they only ever had a client. What changes:
//!
//! * the kinds must be defined there ([`External::wait_for_kinds`]), because nobody but its administrator may do that;
//! * several appliances may work with one API server, so one is elected ([`election`], [`leader`]) and the others
//!   wait; who loses the lead can write nothing any more ([`Fence`]).

mod answers;
pub mod election;
pub mod fence;
pub mod leader;
mod meters;
mod paths;
mod scrape;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::watch;

use answers::BoundedAnswers;
pub use fence::Fence;
use meters::EngineMeters;
use scrape::MetricsEndpoint;

use crate::api::Kind;
use crate::config::EngineConfig;
use crate::files;
use crate::metrics::RegisterMetrics;

/// Most bytes of a kubeconfig, and of a file that it names.
const KUBECONFIG_MAX: u64 = 1 << 20;
/// How often the API server is asked whether the kinds are there.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Who asks.
const USER_AGENT: &str = concat!("slipway/", env!("CARGO_PKG_VERSION"));
/// How long one answer may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// The API server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The kubeconfig cannot be used.
    #[error("engine.kubeconfig {file}: {reason}")]
    Kubeconfig {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// A client cannot be made of it.
    #[error("engine.kubeconfig {file}: {source}")]
    Client {
        /// The file.
        file: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// An API server that is not the embedded one.
#[derive(Clone)]
pub struct External {
    config: Config,
    file: String,
    answers: BoundedAnswers,
    meters: EngineMeters,
    client: Client,
}

/// Why a kubeconfig cannot be used, beside its name.
pub fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        error => error.to_string(),
    }
}

/// The kubeconfig that the file names, and the context in it.
///
/// # Errors
///
/// When the file cannot be read.
pub fn kubeconfig(settings: &EngineConfig) -> Option<Result<(Kubeconfig, KubeConfigOptions), EngineError>> {
    let path = settings.kubeconfig.as_ref()?;
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    let read = read(path).map(|kubeconfig| (kubeconfig, options));
    Some(read.map_err(|error| EngineError::Kubeconfig { file: path.display().to_string(), reason: reason(&error) }))
}

/// A kubeconfig. The files that it names beside it are looked at: they are read when a client is made of it.
fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |error| KubeconfigError::ReadConfig(error, path)
    };
    // The client opens it and them by itself, and would wait for a pipe.
    files::read(path, KUBECONFIG_MAX).map_err(fail(path))?;
    let kubeconfig = Kubeconfig::read_from(path)?;
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref()?.certificate_authority.clone());
    let users = kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
    let users = users.flat_map(|user| [&user.client_certificate, &user.client_key, &user.token_file]);
    for file in clusters.chain(users.flatten().cloned()).map(PathBuf::from) {
        files::read(&file, KUBECONFIG_MAX).map_err(fail(&file))?;
    }
    Ok(kubeconfig)
}

impl External {
    /// Reads the kubeconfig; `None` when none is configured. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`EngineError`] when the file cannot be used.
    pub async fn open(settings: &EngineConfig) -> Result<Option<Self>, EngineError> {
        let Some(read) = kubeconfig(settings) else { return Ok(None) };
        let (kubeconfig, options) = read?;
        let file = settings.kubeconfig.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| EngineError::Kubeconfig { file: file.clone(), reason: reason(&error) })?;
        // API servers name the manager of fields, and callers in their audit log, by it.
        config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
        let (answers, meters) = (BoundedAnswers::default(), EngineMeters::default());
        let builder = ClientBuilder::try_from(config.clone())
            .map_err(|source| EngineError::Client { file: file.clone(), source: Box::new(source) })?;
        let client = builder.with_layer(&answers).with_layer(&paths::layer()).with_layer(&meters).build();
        Ok(Some(Self { config, file, answers, meters, client }))
    }

    /// As `https://10.0.0.1:6443`.
    pub fn endpoint(&self) -> String {
        self.config.cluster_url.to_string().trim_end_matches('/').to_owned()
    }

    /// A client that may always write.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client that writes only while this appliance leads.
    ///
    /// # Errors
    ///
    /// [`EngineError`] when the certificates of the kubeconfig cannot be used.
    pub fn fenced(&self, fence: Fence) -> Result<Client, EngineError> {
        let builder = ClientBuilder::try_from(self.config.clone())
            .map_err(|source| EngineError::Client { file: self.file.clone(), source: Box::new(source) })?;
        let builder = builder.with_layer(&self.answers).with_layer(&paths::layer()).with_layer(&self.meters);
        Ok(builder.with_layer(&fence.layer()).build())
    }

    /// Notes for a scrape whether this appliance leads.
    pub fn lead(&self, leads: bool) {
        self.meters.lead(leads);
    }

    /// Returns when every kind is served there.
    pub async fn wait_for_kinds(&self, kinds: &[Kind]) {
        let mut said = String::new();
        loop {
            let asked = tokio::time::timeout(ANSWER_DEADLINE, self.served(kinds)).await;
            let trouble = match asked {
                Ok(Ok(served)) => match missing(kinds, &served) {
                    none if none.is_empty() => return,
                    missing => format!(
                        "these kinds are not defined there: {}. Apply what `slipway crds` prints",
                        missing.join(", ")
                    ),
                },
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {} s", ANSWER_DEADLINE.as_secs()),
            };
            if trouble != said {
                tracing::warn!(api = self.endpoint(), %trouble, "waiting for the API server");
                said = trouble;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Group, version and plural of what is served of these groups.
    async fn served(&self, kinds: &[Kind]) -> Result<HashSet<(String, String)>, kube::Error> {
        let mut versions: Vec<String> = wanted(kinds).map(|(version, _)| version).collect();
        versions.sort_unstable();
        versions.dedup();
        let mut served = HashSet::new();
        for version in versions {
            match self.client.list_api_group_resources(&version).await {
                Ok(list) => served.extend(list.resources.into_iter().map(|one| (version.clone(), one.name))),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(served)
    }

    /// What the API's port answers besides the agents: health, metrics, and where the API is. `ready` is whether every host
    /// is known.
    pub fn router(&self, ready: watch::Receiver<bool>, meters: RegisterMetrics) -> Router {
        let own = self.meters.clone();
        let all: RegisterMetrics = Arc::new(move |registry| {
            meters(registry);
            own.register(registry);
        });
        let scrapes = MetricsEndpoint::new(self.client(), all);
        let metrics = async move |headers: HeaderMap| scrapes.answer(&headers).await;
        let endpoint = self.endpoint();
        let readiness = async move || match *ready.borrow() {
            true => (StatusCode::OK, "ok"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "hosts are not listed yet"),
        };
        let elsewhere = async move || {
            let message = format!("this appliance keeps its objects in the API server at {endpoint}");
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "NotFound", "code": 404});
            (StatusCode::NOT_FOUND, axum::Json(status))
        };
        Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/livez", get(async || "ok"))
            .route("/readyz", get(readiness))
            .route("/metrics", get(metrics))
            .fallback(elsewhere)
    }
}

fn wanted(kinds: &[Kind]) -> impl Iterator<Item = (String, String)> {
    kinds.iter().flat_map(|kind| {
        let spec = &kind.crd.spec;
        let served = spec.versions.iter().filter(|version| version.served);
        served.map(|version| (format!("{}/{}", spec.group, version.name), spec.names.plural.clone()))
    })
}

/// Kinds that are not served, as `baremetalhosts.metal3.io/v1alpha1`.
fn missing(kinds: &[Kind], served: &HashSet<(String, String)>) -> Vec<String> {
    wanted(kinds).filter(|one| !served.contains(one)).map(|(version, plural)| format!("{plural}.{version}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_are_not_there_are_named() {
        let kinds = crate::modules::acted_on();
        let all: HashSet<_> = wanted(&kinds).collect();
        assert!(missing(&kinds, &all).is_empty());
        let mut some = all.clone();
        some.remove(&("metal3.io/v1alpha1".to_owned(), "baremetalhosts".to_owned()));
        assert_eq!(missing(&kinds, &some), ["baremetalhosts.metal3.io/v1alpha1"]);
        assert_eq!(missing(&kinds, &HashSet::new()).len(), all.len());
    }
}
