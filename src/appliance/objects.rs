//! Where the objects are: the embedded API server, with all that lives bring into it, or another one.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::shared::SharedServices;
use crate::api::{Kind, StoragePolicy};
use crate::apiserver::audit::{Audit, AuditOptions};
use crate::apiserver::{self, ApiServer};
use crate::backup;
use crate::config::Config;
use crate::engine::External;
use crate::metrics::RegisterMetrics;
use crate::module::Life;
use crate::modules::{self, acted_on, declared};
use crate::pki::Pki;
use crate::runtime;
use crate::store::Store;

/// The API server of the objects.
pub(super) struct ObjectsServer {
    /// May always write.
    pub client: Client,
    /// What the API's port answers for it.
    pub router: Router,
    pub server: ObjectsPlace,
}

/// Which one it is.
pub(super) enum ObjectsPlace {
    Embedded { api: ApiServer, audit: Audit },
    External(Box<External>),
}

/// What an API server is made of.
pub(super) struct Foundation<'a> {
    pub config: &'a Config,
    pub pki: &'a Pki,
    pub store: &'a Store,
    pub shared: &'a SharedServices,
    pub lives: &'a Arc<[Box<dyn Life>]>,
    /// Whether all that waits for the hosts is started.
    pub started: watch::Receiver<bool>,
    pub stop: &'a CancellationToken,
}

impl ObjectsServer {
    /// Opens what the configuration names. Waits for an API server of somebody else's until it has the kinds.
    ///
    /// # Errors
    /// When it cannot be used as it is configured.
    pub(super) async fn open(kinds: JoinHandle<Vec<Kind>>, on: Foundation<'_>) -> anyhow::Result<Self> {
        let Some(external) = External::open(&on.config.engine).await? else {
            return on.embedded(&kinds.await?).await;
        };
        info!(api = external.endpoint(), "the objects are in another API server: the embedded one is off");
        external.wait_for_kinds(&acted_on()).await;
        let (client, router) = (external.client(), external.router(on.started.clone(), on.meters()));
        Ok(Self { client, router, server: ObjectsPlace::External(Box::new(external)) })
    }

    /// Resources that are in memory only, by their names in the store.
    pub(super) fn in_memory(&self) -> HashSet<String> {
        match &self.server {
            ObjectsPlace::Embedded { api, .. } => in_memory(api),
            ObjectsPlace::External(_) => HashSet::new(),
        }
    }
}

impl Foundation<'_> {
    /// All that is counted, whichever server answers the scrape.
    fn meters(&self) -> RegisterMetrics {
        let (lives, connections) = (self.lives.clone(), self.shared.connections.clone());
        Arc::new(move |registry| {
            lives.iter().for_each(|life| life.register(registry));
            connections.register(registry);
            runtime::register(registry);
        })
    }

    /// The embedded API server, with rules, views and metrics of all lives.
    async fn embedded(&self, kinds: &[Kind]) -> anyhow::Result<ObjectsServer> {
        let Self { config, store, .. } = self;
        let api = self.server(kinds).await?;
        modules::bounded().for_each(|(kind, rule)| api.add_admission(&kind, rule));
        for life in self.lives.iter() {
            life.admission().into_iter().for_each(|(kind, rules)| api.add_admission(kind, rules));
            life.views().into_iter().for_each(|(kind, name, view)| api.add_view(kind, name, view));
            life.uploads().into_iter().for_each(|(kind, name, upload)| api.add_upload(kind, name, upload));
            life.faces().into_iter().for_each(|(path, face)| api.add_face(path, face));
        }
        api.add_metrics(self.meters());
        api.set_tasks(self.shared.tasks.clone());
        api.set_webhooks(self.shared.live.webhooks.clone());
        let audit = Audit::start(AuditOptions {
            path: config.data_dir.logs().join("audit.log"),
            max_bytes: config.audit.max_size_mb * 1_000_000,
            max_files: config.audit.max_files,
        })
        .context("audit log")?;
        api.set_audit(audit.clone());
        for kind in declared().filter(|kind| kind.memory() > 0) {
            store.add_weight(&kind.storage(), kind.memory());
        }
        for kind in declared().filter(|kind| kind.is_kept_parsed()) {
            store.weigh_parsed(&kind.storage());
        }
        let source =
            backup::take::BackupSource::new((*store).clone(), config.data_dir.pki(), &config.text, in_memory(&api));
        api.set_backup(backup::page::page(source, self.stop.clone()));
        Ok(ObjectsServer { client: api.client(), router: api.router(), server: ObjectsPlace::Embedded { api, audit } })
    }

    async fn server(&self, kinds: &[Kind]) -> anyhow::Result<ApiServer> {
        let access = apiserver::auth::AuthOptions {
            token_key: Some(apiserver::auth::TokenKey::from_pkcs8(self.pki.token_key())?),
            ca_pem: self.pki.ca_pem().to_owned(),
            series: Some(self.pki.authority().series().clone()),
        };
        let api = ApiServer::with_auth(self.store.clone(), kinds, access, self.stop.clone()).await?;
        api.keep_events(self.config.api.event_lifetime.0);
        let started = self.started.clone();
        let synced = move || if *started.borrow() { Ok(()) } else { Err("hosts are not listed yet".to_owned()) };
        api.add_check("informer-sync", apiserver::health::HealthScope::Readiness, Arc::new(synced));
        Ok(api)
    }
}

/// What a backup leaves out.
fn in_memory(api: &ApiServer) -> HashSet<String> {
    let registry = api.registry();
    let views = registry.stored().filter(|kind| kind.policy == StoragePolicy::View);
    views.map(|kind| kind.storage.to_string()).collect()
}
