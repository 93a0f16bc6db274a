//! `/metrics` of the embedded API server.
//!
//! Requests, watches and the process have the names that dashboards of Kubernetes expect (`apiserver_…`, `process_…`);
//! what is Slipway's own begins with `slipway_`. Labels come from the table of resources and from fixed lists, never from
//! what a client wrote, so that their number is bounded. Kinds that somebody defined are one: `custom`.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{Method, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::apiserver::ServedResource;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::kinds::registry;
use crate::apiserver::requests::request::{RequestRoute, RequestTarget};
use crate::apiserver::shares::inflight::InflightLimits;
use crate::apiserver::webhooks::meters as webhook_meters;
use crate::metrics::{self, RegisterMetrics};
use crate::store::Store;

/// Seconds that divide requests by how long they took: upstream's, and below them what this server mostly needs.
const SECONDS: [f64; 15] = [0.0005, 0.001, 0.0025, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 15.0, 60.0];

/// In the place of what somebody defined: there may be any number of it in the course of time.
const CUSTOM: &str = "custom";

/// What a request was about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::apiserver) struct RequestLabels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    #[prometheus(flatten)]
    about: RequestLabels,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    group: String,
    version: String,
    kind: String,
}

/// Counters of one server.
#[derive(Clone)]
pub(in crate::apiserver) struct ApiServerMetrics {
    requests: Family<ResponseLabels, Counter>,
    seconds: Family<RequestLabels, Histogram, fn() -> Histogram>,
    watches: Family<RequestLabels, Gauge>,
    events: Family<WatchLabels, Counter>,
    refused: Family<[(&'static str, &'static str); 1], Counter>,
    rooms: Arc<Mutex<Vec<RegisterMetrics>>>,
}

impl Default for ApiServerMetrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            watches: Family::default(),
            events: Family::default(),
            refused: Family::default(),
            rooms: Arc::default(),
        }
    }
}

impl RequestLabels {
    /// What a request is about, by its path and method.
    pub fn of(registry: &registry::ResourceRegistry, route: &RequestRoute, method: &Method, watch: bool) -> Self {
        let target = match route {
            RequestRoute::Resource(target) => {
                registry.find(&target.group, &target.version, &target.plural).map(|resource| (target, resource))
            }
            _ => None,
        };
        let named = target.is_some_and(|(target, _)| target.name.is_some());
        let verb = match *method {
            Method::GET if watch => "WATCH",
            Method::GET if target.is_some() && !named => "LIST",
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::PATCH => "PATCH",
            Method::DELETE if target.is_some() && !named => "DELETECOLLECTION",
            Method::DELETE => "DELETE",
            Method::HEAD => "HEAD",
            Method::OPTIONS => "OPTIONS",
            _ => "other",
        };
        let Some((target, resource)) = target else { return Self { verb, component: "apiserver", ..Self::default() } };
        let WatchLabels { group, version, .. } = WatchLabels::of(resource);
        Self {
            verb,
            group,
            version,
            resource: if resource.custom.is_some() { CUSTOM.to_owned() } else { resource.plural.clone() },
            subresource: subresource(target),
            scope: match (named, &target.namespace) {
                (true, _) => "resource",
                (false, Some(_)) => "namespace",
                (false, None) => "cluster",
            },
            component: "apiserver",
        }
    }
}

impl WatchLabels {
    fn of(resource: &ServedResource) -> Self {
        if resource.custom.is_some() {
            return Self { group: CUSTOM.to_owned(), version: CUSTOM.to_owned(), kind: CUSTOM.to_owned() };
        }
        Self { group: resource.group.clone(), version: resource.version.clone(), kind: resource.kind.clone() }
    }
}

/// The subresource, when it is one that anything has.
fn subresource(target: &RequestTarget) -> String {
    let known = ["status", "scale", "token", "finalize", "log"];
    target.subresource.as_deref().filter(|name| known.contains(name)).unwrap_or_default().to_owned()
}

/// Counts one watch for as long as it lasts.
pub(in crate::apiserver) struct Watching {
    gauge: Gauge,
    events: Counter,
}

impl Watching {
    pub fn sent(&self) {
        self.events.inc();
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl ApiServerMetrics {
    /// Notes an answer.
    pub fn answered(&self, about: RequestLabels, code: StatusCode, took: Duration) {
        if about.verb != "WATCH" {
            self.seconds.get_or_create(&about).observe(took.as_secs_f64());
        }
        self.requests.get_or_create(&ResponseLabels { about, code: code.as_u16() }).inc();
    }

    /// Notes a request that was one too many.
    pub fn refused(&self, kind: &'static str) {
        self.refused.get_or_create(&[("request_kind", kind)]).inc();
    }

    /// Notes a watch.
    pub fn watching(&self, resource: &ServedResource, target: &RequestTarget) -> Watching {
        let watched = WatchLabels::of(resource);
        let about = RequestLabels {
            verb: "WATCH",
            group: watched.group.clone(),
            version: watched.version.clone(),
            resource: if resource.custom.is_some() { CUSTOM.to_owned() } else { resource.plural.clone() },
            subresource: String::new(),
            scope: if target.namespace.is_some() { "namespace" } else { "cluster" },
            component: "apiserver",
        };
        let gauge = self.watches.get_or_create_owned(&about);
        gauge.inc();
        Watching { gauge, events: self.events.get_or_create_owned(&watched) }
    }

    /// Adds a room's own.
    pub fn add(&self, meters: RegisterMetrics) {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner).push(meters);
    }

    /// Answers a scrape.
    pub fn serve(
        &self,
        store: &Store,
        inflight: &InflightLimits,
        table: &registry::ResourceRegistry,
    ) -> Result<Response, ApiError> {
        let mut registry = Registry::default();
        registry.register("apiserver_request", "Answered requests", self.requests.clone());
        registry.register(
            "apiserver_request_duration_seconds",
            "Time to the head of the answer; watches are left out",
            self.seconds.clone(),
        );
        registry.register("apiserver_longrunning_requests", "Watches that last", self.watches.clone());
        registry.register("apiserver_watch_events", "Events sent to watches", self.events.clone());
        registry.register("apiserver_dropped_requests", "Requests refused with 429", self.refused.clone());
        let meters = store.meters();
        registry.register("slipway_store_commits", "Groups of changes put on disk", meters.commits.clone());
        registry.register("slipway_store_commit_requests", "Changes in a group", meters.group_size.clone());
        registry.register(
            "slipway_store_commit_duration_seconds",
            "Time for a group to be on disk",
            meters.commit_seconds.clone(),
        );
        registry.register(
            "slipway_store_rewrites",
            "Times the database was rewritten, smaller",
            meters.rewrites.clone(),
        );
        registry.register(
            "slipway_store_rewrite_duration_seconds",
            "Time for the database to be rewritten, smaller",
            meters.rewrite_seconds.clone(),
        );
        registry.register(
            "slipway_store_live_bytes",
            "All objects, events and table entries, as they are on disk",
            meters.live_bytes.clone(),
        );
        registry.register("slipway_store_disk_bytes", "What they take of the disk", meters.disk_bytes.clone());
        webhook_meters::register(&mut registry);
        let rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner).clone();
        rooms.iter().for_each(|room| room(&mut registry));
        let (reads, writes) = inflight.taken();
        registry.register_collector(Box::new(Now {
            counts: counts(store, table),
            revision: store.revision(),
            writable: store.writable().is_ok(),
            reads,
            writes,
        }));
        let failed = |error| ApiError::internal(format!("metrics cannot be written: {error}"));
        Ok(metrics::answer(registry).map_err(failed)?.map(Body::from))
    }
}

/// Objects of each resource.
fn counts(store: &Store, table: &registry::ResourceRegistry) -> BTreeMap<String, usize> {
    let own: HashSet<&str> = table.stored().filter(|kind| kind.custom.is_none()).map(|kind| &*kind.storage).collect();
    let mut counts = BTreeMap::new();
    for (storage, count) in store.counts() {
        let name = if own.contains(&*storage) { storage.trim_start_matches('/') } else { CUSTOM };
        *counts.entry(name.to_owned()).or_default() += count;
    }
    counts
}

/// What is measured when it is asked for.
#[derive(Debug)]
struct Now {
    counts: BTreeMap<String, usize>,
    revision: u64,
    writable: bool,
    reads: usize,
    writes: usize,
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut one = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        one("slipway_store_revision", "Newest revision", self.revision as f64)?;
        one("slipway_store_writable", "1 while the disk takes writes", f64::from(u8::from(self.writable)))?;
        let gauge = ConstGauge::new(0_u64);
        let mut family =
            encoder.encode_descriptor("apiserver_storage_objects", "Stored objects", None, gauge.metric_type())?;
        for (resource, count) in &self.counts {
            ConstGauge::new(*count as u64).encode(family.encode_family(&[("resource", resource.as_str())])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "apiserver_current_inflight_requests",
            "Requests under way",
            None,
            gauge.metric_type(),
        )?;
        for (kind, count) in [("readOnly", self.reads), ("mutating", self.writes)] {
            ConstGauge::new(count as u64).encode(family.encode_family(&[("request_kind", kind)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_from_the_table_only() {
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        for (method, path, watch, wanted) in [
            ("GET", "/api/v1/secrets", false, "LIST /v1/secrets"),
            ("GET", "/api/v1/secrets", true, "WATCH /v1/secrets"),
            ("GET", "/api/v1/namespaces/a/secrets/b", false, "GET /v1/secrets"),
            ("DELETE", "/api/v1/namespaces/a/secrets", false, "DELETECOLLECTION /v1/secrets"),
            (
                "PATCH",
                "/apis/metal3.io/v1alpha1/namespaces/a/baremetalhosts/b/status",
                false,
                "PATCH metal3.io/v1alpha1/baremetalhosts/status",
            ),
            ("PUT", "/api/v1/namespaces/a/secrets/b/evil", false, "PUT /v1/secrets"),
            ("GET", "/apis/evil.example/v1/evils", false, "GET //"),
            ("GET", "/evil", false, "GET //"),
            ("EVIL", "/version", false, "other //"),
        ] {
            let about = RequestLabels::of(&registry, &RequestRoute::parse(path), &method.parse().unwrap(), watch);
            let named = if about.subresource.is_empty() { String::new() } else { format!("/{}", about.subresource) };
            let shown = format!("{} {}/{}/{}{named}", about.verb, about.group, about.version, about.resource);
            assert_eq!(shown, wanted, "{method} {path}");
        }
    }
}
