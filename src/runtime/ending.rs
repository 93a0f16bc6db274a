//! Shutdown of a controller.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use futures::FutureExt;
use kube::Resource;
use kube::runtime::reflector::Store;
use tokio_util::sync::CancellationToken;

/// How long what is under way may take once the shutdown is there. Then it ends wherever it is, as in a crash: whoever shuts down
/// has other things to end, and hundreds of machines that do not answer must not keep it from them.
const UNDER_WAY: Duration = Duration::from_secs(5);

/// Runs a controller that ends upon `shutdown`, to its end, which comes within seconds. `store` is the one that it looks its
/// objects up in.
///
/// kube's controller starts nothing before all objects are listed, and one that is told to end before that waits for
/// the list for ever, because it no longer reads it. Nothing is under way in it then, so it is dropped.
pub async fn to_its_end<K>(controller: impl Future<Output = ()>, store: Store<K>, shutdown: CancellationToken)
where
    K: Resource + Clone + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Debug,
{
    let too_early = async {
        shutdown.cancelled().await;
        if store.wait_until_ready().now_or_never().is_some() {
            tokio::time::sleep(UNDER_WAY).await;
            tracing::warn!(kind = %K::kind(&K::DynamicType::default()), "a controller did not end in time: what it was doing was cut off");
        }
    };
    tokio::select! {
        () = controller => {}
        () = too_early => {}
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;

    use futures::StreamExt;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use kube::runtime::controller::{Action, Controller};
    use kube::runtime::watcher;
    use kube::{Api, Client};

    use super::*;

    /// A client whose API server never answers.
    fn silent() -> Client {
        let never = |_: http::Request<Body>| std::future::pending::<Result<http::Response<Body>, Infallible>>();
        Client::new(tower::service_fn(never), "default")
    }

    #[tokio::test]
    async fn what_hangs_at_the_shutdown_is_left() {
        let shutdown = CancellationToken::new();
        let (store, mut writer) = kube::runtime::reflector::store::<ConfigMap>();
        writer.apply_watcher_event(&watcher::Event::Init);
        writer.apply_watcher_event(&watcher::Event::InitDone);
        shutdown.cancel();
        let ended = to_its_end(std::future::pending(), store, shutdown);
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it ended");
    }

    #[tokio::test]
    async fn a_controller_that_has_listed_nothing_yet_ends_too() {
        let shutdown = CancellationToken::new();
        let controller = Controller::new(Api::<ConfigMap>::all(silent()), watcher::Config::default());
        let store = controller.store();
        let run = controller
            .graceful_shutdown_on(shutdown.clone().cancelled_owned())
            .run(
                |_, _| std::future::ready(Ok::<_, Infallible>(Action::await_change())),
                |_, _, _| Action::await_change(),
                Arc::new(()),
            )
            .for_each(|_| std::future::ready(()));
        let stop = shutdown.clone();
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            stop.cancel();
        });
        let ended = tokio::time::timeout(Duration::from_secs(10), to_its_end(run, store, shutdown)).await;
        ended.expect("it ended");
    }
}
