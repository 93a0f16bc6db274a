//! Tests of controllers: back-off, and objects that panic or hang.

use std::collections::HashMap;
use std::convert::Infallible;

use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use kube::core::Status;
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::runtime::Watches;

#[test]
fn who_fails_again_and_again_is_tried_less_and_less_often() {
    let seconds = |first, failures| pause(Duration::from_secs(first), failures).as_secs();
    assert_eq!([0, 1, 2, 3, 4, 99, u32::MAX].map(|failures| seconds(5, failures)), [5, 10, 20, 40, 60, 60, 60]);
    assert_eq!([seconds(300, 0), seconds(300, 9)], [300, 300]);
}

/// Says what it was asked to look at, and how often.
struct Faulty(watch::Sender<HashMap<String, u32>>);

impl Reconcile for Faulty {
    type Object = ConfigMap;
    type Error = kube::Error;

    const NAME: &'static str = "faulty";
    const AT_ONCE: u16 = 1;
    const DEADLINE: Option<Duration> = Some(Duration::from_millis(50));

    fn retry_after(&self) -> Duration {
        Duration::from_millis(10)
    }

    async fn reconcile(&self, object: Arc<ConfigMap>) -> Result<Action, kube::Error> {
        let name = object.name_any();
        self.0.send_modify(|seen| *seen.entry(name.clone()).or_default() += 1);
        match name.as_str() {
            "panics" => panic!("{name}"),
            "hangs" => std::future::pending().await,
            "conflicts" => Err(kube::Error::Api(Status::failure("", "Conflict").with_code(409).boxed())),
            _ => Ok(Action::requeue(Duration::from_millis(10))),
        }
    }
}

#[tokio::test]
async fn an_object_that_panics_or_hangs_costs_itself_alone() {
    let service = tower::service_fn(async |request: Request<Body>| {
        let object = |name: &str| json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": "1"}});
        if request.uri().query().unwrap_or_default().contains("watch=") {
            std::future::pending::<()>().await;
        }
        let items = ["panics", "hangs", "conflicts", "well"].map(object);
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
    });
    let (shutdown, mut watches) = (CancellationToken::new(), Watches::default());
    let cache = Cache::new(&mut watches, ConfigMap::clone);
    tokio::spawn(watches.run(kube::Client::new(service, "default"), shutdown.clone()));
    let (tell, mut seen) = watch::channel(HashMap::new());
    let stop = shutdown.clone();
    let run = tokio::spawn(async move { run(Arc::new(Faulty(tell)), &cache, stream::pending(), stop).await });
    let often = |seen: &HashMap<String, u32>| seen.len() == 4 && seen.values().all(|times| *times >= 3);
    let all = tokio::time::timeout(Duration::from_secs(60), seen.wait_for(often)).await;
    all.expect("all were looked at again and again").expect("it runs");
    let shown = crate::metrics::shown(register);
    for (series, least) in [
        ("controller_runtime_reconcile_total{controller=\"faulty\",result=\"error\"}", 4),
        ("controller_runtime_reconcile_total{controller=\"faulty\",result=\"success\"}", 2),
        ("controller_runtime_reconcile_total{controller=\"faulty\",result=\"requeue\"}", 2),
        ("controller_runtime_reconcile_time_seconds_count{controller=\"faulty\"}", 8),
        ("slipway_controller_failing_objects{controller=\"faulty\"}", 2),
    ] {
        let value =
            shown.lines().find_map(|line| line.strip_prefix(series)).map_or(0, |value| value.trim().parse().unwrap());
        assert!(value >= least, "{series}: {value}");
    }
    // Who is in conflict with another does not fail.
    assert!(shown.contains("slipway_controller_failing_objects{controller=\"faulty\"} 2\n"), "{shown}");
    shutdown.cancel();
    run.await.expect("it ended");
}

/// Looks at objects of the namespace `small` again and again; never ends a look at one of another.
struct Endless {
    others: watch::Sender<usize>,
    small: watch::Sender<usize>,
}

impl Reconcile for Endless {
    type Object = ConfigMap;
    type Error = Infallible;

    const NAME: &'static str = "endless";
    const OF_A_NAMESPACE: u16 = 16;

    fn retry_after(&self) -> Duration {
        Duration::from_millis(10)
    }

    async fn reconcile(&self, object: Arc<ConfigMap>) -> Result<Action, Infallible> {
        if object.namespace().as_deref() == Some("small") {
            self.small.send_modify(|seen| *seen += 1);
            return Ok(Action::requeue(Duration::from_millis(10)));
        }
        self.others.send_modify(|held| *held += 1);
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_small_namespace_is_looked_at_while_ten_others_have_all_places_they_can() {
    let service = tower::service_fn(async |request: Request<Body>| {
        if request.uri().query().unwrap_or_default().contains("watch=") {
            std::future::pending::<()>().await;
        }
        let object = |namespace: &str, number: usize| json!({"metadata": {"name": format!("o{number}"), "namespace": namespace, "resourceVersion": "1"}});
        let large = (0..10).map(|number| format!("large-{number}"));
        let mut items: Vec<_> = large.flat_map(|name| (0..40).map(move |number| object(&name, number))).collect();
        items.push(object("small", 0));
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
    });
    let (shutdown, mut watches) = (CancellationToken::new(), Watches::default());
    let cache = Cache::new(&mut watches, ConfigMap::clone);
    tokio::spawn(watches.run(kube::Client::new(service, "default"), shutdown.clone()));
    let ((others, mut held), (small, mut seen)) = (watch::channel(0), watch::channel(0));
    let reconciler = Arc::new(Endless { others, small });
    let runs = tokio::spawn(async move { run(reconciler, &cache, stream::pending(), shutdown).await });
    // They have all but those that are kept for who has few, and two each of these at most.
    let within = Duration::from_secs(60);
    let all = tokio::time::timeout(within, held.wait_for(|held| *held >= 96)).await;
    all.expect("they take what they can").expect("it runs");
    let before = *seen.borrow_and_update();
    let more = tokio::time::timeout(within, seen.wait_for(|seen| *seen > before + 10)).await;
    more.expect("the small one is looked at").expect("it runs");
    assert!((96..128).contains(&*held.borrow()));
    // Looks under way are waited for, and these do not end.
    runs.abort();
}
