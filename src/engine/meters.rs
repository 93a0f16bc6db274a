//! What is counted of another API server: requests to it, under the names of client-go, which dashboards know, and whether this
//! appliance leads.

use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tower::{Layer, Service};

/// Seconds that divide requests by the time to the head of the answer: client-go's.
const SECONDS: [f64; 11] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0];
/// In the place of a code where there was no answer, as client-go has it.
const NO_ANSWER: &str = "<error>";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EngineResponseLabels {
    code: String,
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EngineRequestLabels {
    verb: &'static str,
}

/// Counts the requests of all clients that it is given to. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct EngineMeters {
    requests: Family<EngineResponseLabels, Counter>,
    seconds: Family<EngineRequestLabels, Histogram, fn() -> Histogram>,
    leads: Gauge,
}

impl Default for EngineMeters {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        let seconds = Family::new_with_constructor(histogram);
        Self { requests: Family::default(), seconds, leads: Gauge::default() }
    }
}

impl EngineMeters {
    /// Names it for a scrape.
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Requests to the API server that keeps the objects, by code";
        registry.register("rest_client_requests", help, self.requests.clone());
        let help = "Time to the head of its answer; watches and what is not answered are left out";
        registry.register("rest_client_request_duration_seconds", help, self.seconds.clone());
        registry.register("slipway_leads", "1 while this appliance leads", self.leads.clone());
    }

    /// Notes whether this appliance leads.
    pub(super) fn lead(&self, leads: bool) {
        self.leads.set(leads.into());
    }

    fn answered(&self, method: &'static str, code: Option<u16>, took: Option<f64>) {
        let code = code.map_or_else(|| NO_ANSWER.to_owned(), |code| code.to_string());
        self.requests.get_or_create(&EngineResponseLabels { code, method }).inc();
        if let Some(took) = took {
            self.seconds.get_or_create(&EngineRequestLabels { verb: method }).observe(took);
        }
    }
}

fn name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

impl<S> Layer<S> for EngineMeters {
    type Service = MeteredService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        MeteredService { inner, meters: self.clone() }
    }
}

/// A service whose requests are counted.
#[derive(Clone)]
pub(super) struct MeteredService<S> {
    inner: S,
    meters: EngineMeters,
}

impl<S, B> Service<Request<Body>> for MeteredService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, began) = (name(request.method()), Instant::now());
        let watches = super::answers::is_watch(request.uri().query().unwrap_or_default());
        let (answer, meters) = (self.inner.call(request), self.meters.clone());
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            let took = code.filter(|_| !watches).map(|_| began.elapsed().as_secs_f64());
            meters.answered(method, code, took);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn requests_are_counted_by_what_was_answered() {
        let meters = EngineMeters::default();
        let service = meters.layer(service_fn(async |request: Request<Body>| match request.uri().path() {
            "/away" => Err("nobody listens"),
            "/gone" => Ok(Response::builder().status(StatusCode::NOT_FOUND).body(()).unwrap()),
            _ => Ok(Response::new(())),
        }));
        for (method, uri) in [("GET", "/a"), ("GET", "/gone"), ("PATCH", "/away"), ("GET", "/a?watch=true")] {
            let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            service.clone().oneshot(request).await.ok();
        }
        meters.lead(true);
        let text = crate::metrics::shown(|registry| meters.register(registry));
        for line in [
            "rest_client_requests_total{code=\"200\",method=\"GET\"} 2",
            "rest_client_requests_total{code=\"404\",method=\"GET\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"PATCH\"} 1",
            "rest_client_request_duration_seconds_count{verb=\"GET\"} 2",
            "slipway_leads 1",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
