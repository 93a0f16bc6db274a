//! The server as its handlers know it: the store, what is served, and what other rooms have brought.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::answers::status::FieldError;
use super::auth::{Auth, AuthOptions, JwtKeyError, UserIdentity};
use super::discovery::{groups, openapi};
use super::endpoints::{health, metrics};
use super::extensions::admission::{
    AdministratorsPage, AdmissionRequest, AdmissionRules, CallerRights, ObjectView, Upload,
};
use super::extensions::face::Face;
use super::kinds::registry::ResourceRegistry;
use super::kinds::resource::ServedResource;
use super::shares::{inflight, response_memory, scan_scheduler};
use super::upkeep::owner_graph;
use super::{audit, crd, webhooks};
use crate::config::WebhooksConfig;
use crate::live::Live;
use crate::metrics::RegisterMetrics;
use crate::runtime::Tasks;
use crate::store::Store;

/// Seconds that events are kept unless [`ApiServer::keep_events`] says otherwise, as upstream.
const EVENT_SECONDS: i64 = 3600;

/// The API server. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) auth: Auth,
    pub(super) audit: OnceLock<audit::Audit>,
    pub(super) backup: OnceLock<AdministratorsPage>,
    pub(super) tasks: OnceLock<Tasks>,
    // std's lock: held to take or to exchange the pointers only.
    pub(super) served_apis: RwLock<ServedApis>,
    /// Kinds defined at run time, as they were last compiled. Held while definitions are settled.
    pub(super) definitions: tokio::sync::Mutex<crd::CompiledDefinitions>,
    // std's lock: held for a look-up only.
    pub(super) admissions: RwLock<HashMap<String, Vec<AdmissionRules>>>,
    /// Of these resources, the views with these names.
    // std's lock: held for a look-up only.
    pub(super) views: RwLock<HashMap<(String, String), ObjectView>>,
    /// Of these resources, the uploads with these names.
    // std's lock: held for a look-up only.
    pub(super) uploads: RwLock<HashMap<(String, String), Upload>>,
    /// Faces, and what their paths begin with.
    // std's lock: held for a look-up only.
    pub(super) faces: RwLock<Vec<(&'static str, Face)>>,
    /// Read by creations, written by the end of a namespace.
    pub(super) namespace_gate: tokio::sync::RwLock<()>,
    pub(super) sweeper: tokio::sync::Notify,
    pub(super) owner_graph: owner_graph::OwnerGraph,
    pub(super) shutdown: CancellationToken,
    /// Seconds that an event is kept after it was last seen.
    pub(super) event_seconds: AtomicI64,
    pub(super) checks: health::Checks,
    pub(super) metrics: metrics::ApiServerMetrics,
    pub(super) inflight: inflight::InflightLimits,
    pub(super) scans: scan_scheduler::ScanScheduler,
    /// For long work of writes and watches, on an object as a whole.
    pub(super) long: scan_scheduler::ScanScheduler,
    /// Held while a document of OpenAPI is made. Whoever wants one that is being made waits for this, and not with a thread
    /// of the runtime.
    pub(super) documenting: tokio::sync::Mutex<()>,
    /// For those whose definitions are compiled.
    pub(super) compilers: scan_scheduler::ScanScheduler,
    pub(super) response_memory: response_memory::ResponseMemory,
    pub(super) webhooks: webhooks::Webhooks,
}

/// What is served now, and its documentation.
#[derive(Clone)]
pub(super) struct ServedApis {
    pub(super) registry: Arc<ResourceRegistry>,
    pub(super) documents: Arc<openapi::OpenApiDocuments>,
}

impl ApiServer {
    /// The parts put together; nothing is written yet.
    pub(super) fn of(
        store: Store,
        registry: ResourceRegistry,
        auth: AuthOptions,
        shutdown: CancellationToken,
    ) -> Result<Self, JwtKeyError> {
        let registry = Arc::new(registry);
        let documents = Arc::new(openapi::OpenApiDocuments::new(&registry, None));
        Ok(Self {
            inner: Arc::new(Inner {
                response_memory: response_memory::ResponseMemory::new(&store),
                auth: Auth::new(&store, auth)?,
                audit: OnceLock::new(),
                backup: OnceLock::new(),
                tasks: OnceLock::new(),
                store,
                served_apis: RwLock::new(ServedApis { registry, documents }),
                definitions: tokio::sync::Mutex::default(),
                admissions: RwLock::default(),
                views: RwLock::default(),
                uploads: RwLock::default(),
                faces: RwLock::default(),
                namespace_gate: tokio::sync::RwLock::default(),
                sweeper: tokio::sync::Notify::new(),
                owner_graph: owner_graph::OwnerGraph::default(),
                shutdown,
                event_seconds: AtomicI64::new(EVENT_SECONDS),
                checks: health::Checks::default(),
                metrics: metrics::ApiServerMetrics::default(),
                inflight: inflight::InflightLimits::default(),
                scans: scan_scheduler::ScanScheduler::default(),
                long: scan_scheduler::ScanScheduler::default(),
                documenting: tokio::sync::Mutex::default(),
                compilers: scan_scheduler::ScanScheduler::new(1),
                webhooks: webhooks::Webhooks::default(),
            }),
        })
    }

    /// Says how long events are kept after they were last seen; an hour otherwise.
    pub fn keep_events(&self, lifetime: Duration) {
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        self.inner.event_seconds.store(seconds, Ordering::Relaxed);
    }

    pub(super) fn event_lifetime(&self) -> jiff::SignedDuration {
        jiff::SignedDuration::from_secs(self.inner.event_seconds.load(Ordering::Relaxed))
    }

    /// Says which webhooks may be called, and where those of services are; none otherwise. Other settings are not taken later.
    pub fn set_webhooks(&self, settings: Live<WebhooksConfig>) {
        self.inner.webhooks.set(settings);
    }

    /// Adds a check to `/healthz`, `/livez` and `/readyz`, or to the last of them only.
    pub fn add_check(&self, name: &'static str, scope: health::HealthScope, check: health::Check) {
        self.inner.checks.add(name, scope, check);
    }

    /// Writes a line for every change, reading of Secrets and failed login from now on. A second log is not taken.
    pub fn set_audit(&self, audit: audit::Audit) {
        self.inner.audit.set(audit).ok();
    }

    /// What it does by itself are tasks of these. Others are not taken later.
    pub fn set_tasks(&self, tasks: Tasks) {
        self.inner.tasks.set(tasks).ok();
    }

    pub(super) fn tasks(&self) -> &Tasks {
        self.inner.tasks.get_or_init(Tasks::default)
    }

    /// Serves backups from now on, to administrators only. A second page is not taken.
    pub fn set_backup(&self, page: AdministratorsPage) {
        self.inner.backup.set(page).ok();
    }

    /// Adds a room's rules for a resource, named `<group>/<plural>`.
    pub fn add_admission(&self, resource: &str, admission: AdmissionRules) {
        let mut all = self.inner.admissions.write().unwrap_or_else(PoisonError::into_inner);
        all.entry(resource.to_owned()).or_default().push(admission);
    }

    /// Adds what a room counts to `/metrics`.
    pub fn add_metrics(&self, meters: RegisterMetrics) {
        self.inner.metrics.add(meters);
    }

    /// Adds a subresource that can only be read to a resource named `<group>/<plural>`. Who may read it is a matter of
    /// roles, as for any subresource.
    pub fn add_view(&self, resource: &str, name: &str, view: ObjectView) {
        let mut all = self.inner.views.write().unwrap_or_else(PoisonError::into_inner);
        all.insert((resource.to_owned(), name.to_owned()), view);
    }

    /// Adds a subresource that takes content to a resource named `<group>/<plural>`. Who may send it is a matter of roles, as
    /// for any subresource.
    pub fn add_upload(&self, resource: &str, name: &str, upload: Upload) {
        let mut all = self.inner.uploads.write().unwrap_or_else(PoisonError::into_inner);
        all.insert((resource.to_owned(), name.to_owned()), upload);
    }

    /// Has a face answer what is asked below a path.
    pub fn add_face(&self, path: &'static str, face: Face) {
        self.inner.faces.write().unwrap_or_else(PoisonError::into_inner).push((path, face));
    }

    pub(super) fn face(&self, path: &str) -> Option<Face> {
        let all = self.inner.faces.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(begins, _)| path.starts_with(begins)).map(|(_, face)| face.clone())
    }

    pub(super) fn upload(&self, resource: &ServedResource, name: &str) -> Option<Upload> {
        let all = self.inner.uploads.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&(resource.storage.to_string(), name.to_owned())).cloned()
    }

    /// Names of a resource's views and uploads, in order, and what can be done with each.
    pub(super) fn views(&self, resource: &ServedResource) -> Vec<(String, &'static [&'static str])> {
        let views = self.inner.views.read().unwrap_or_else(PoisonError::into_inner);
        let uploads = self.inner.uploads.read().unwrap_or_else(PoisonError::into_inner);
        let views = views.keys().map(|key| (key, groups::VIEW_VERBS));
        let all = views.chain(uploads.keys().map(|key| (key, groups::UPLOAD_VERBS)));
        let its = all.filter(|((of, _), _)| **of == *resource.storage);
        let mut names: Vec<_> = its.map(|((_, name), verbs)| (name.clone(), verbs)).collect();
        names.sort_unstable();
        names
    }

    pub(super) fn view(&self, resource: &ServedResource, name: &str) -> Option<ObjectView> {
        let all = self.inner.views.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&(resource.storage.to_string(), name.to_owned())).cloned()
    }

    /// What is served now.
    pub fn registry(&self) -> Arc<ResourceRegistry> {
        self.served_apis().registry
    }

    pub(super) fn served_apis(&self) -> ServedApis {
        self.inner.served_apis.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_registry(&self, registry: ResourceRegistry) {
        let registry = Arc::new(registry);
        let documents = Arc::new(openapi::OpenApiDocuments::new(&registry, Some(&self.served_apis().documents)));
        *self.inner.served_apis.write().unwrap_or_else(PoisonError::into_inner) = ServedApis { registry, documents };
    }

    pub(super) fn store(&self) -> &Store {
        &self.inner.store
    }

    /// What a caller may do.
    pub(super) fn rights<'r>(&'r self, identity: &'r UserIdentity) -> CallerRights<'r> {
        CallerRights { auth: self.auth(), identity }
    }

    pub(super) fn auth(&self) -> &Auth {
        &self.inner.auth
    }

    pub(super) fn shutdown(&self) -> &CancellationToken {
        &self.inner.shutdown
    }

    pub(super) fn namespace_gate(&self) -> &tokio::sync::RwLock<()> {
        &self.inner.namespace_gate
    }

    pub(super) fn owner_graph(&self) -> &owner_graph::OwnerGraph {
        &self.inner.owner_graph
    }

    pub(super) fn wake_sweeper(&self) {
        self.inner.sweeper.notify_one();
    }

    pub(super) async fn sweeper_woken(&self) {
        self.inner.sweeper.notified().await;
    }

    /// Whether rooms have rules for a resource.
    pub(super) fn has_admission(&self, resource: &ServedResource) -> bool {
        self.inner.admissions.read().unwrap_or_else(PoisonError::into_inner).contains_key(&*resource.storage)
    }

    pub(super) fn admit(&self, request: &AdmissionRequest<'_>) -> Vec<FieldError> {
        let rules = {
            let all = self.inner.admissions.read().unwrap_or_else(PoisonError::into_inner);
            all.get(&*request.resource.storage).cloned().unwrap_or_default()
        };
        rules.iter().filter_map(|rule| rule(request).err()).flatten().collect()
    }
}
