//! Lists of a cluster, page by page, with an end to them: whoever answers may put one object on each page, or none, or never stop.

use std::fmt::Debug;
use std::ops::ControlFlow;

use kube::api::{Api, ListParams};
use serde::de::DeserializeOwned;

use super::WorkloadError;

/// Pages of a list: whoever answers may put one object on each, or none.
pub const PAGES_MAX: usize = 200;

/// Lists objects, `per_page` at once and in [`PAGES_MAX`] pages at most, and hands on each.
///
/// # Errors
///
/// What the API says; when there are more than `most`, in more pages, or `each` breaks off.
pub async fn pages<K>(
    api: &Api<K>,
    params: &ListParams,
    (per_page, most): (u32, usize),
    mut each: impl FnMut(K) -> ControlFlow<()>,
) -> Result<(), WorkloadError>
where
    K: Clone + Debug + DeserializeOwned,
{
    let (mut seen, mut rest) = (0, None);
    for _ in 0..PAGES_MAX {
        let page = api.list(&ListParams { limit: Some(per_page), continue_token: rest, ..params.clone() }).await?;
        seen += page.items.len();
        if seen > most || page.items.into_iter().try_for_each(&mut each).is_break() {
            break;
        }
        rest = page.metadata.continue_.filter(|token| !token.is_empty());
        if rest.is_none() {
            return Ok(());
        }
    }
    Err(WorkloadError::TooMany { most })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A cluster whose lists have so many pages, each with so many objects; how often it was asked.
    fn played(pages: usize, items: usize) -> (Api<ConfigMap>, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let answer = move |request: Request<Body>| {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let query = request.uri().query().unwrap_or_default().to_owned();
            assert!(query.contains("limit=2") && query.contains("labelSelector=a"), "{query}");
            assert_eq!(query.contains("continue="), number > 0, "{query}");
            let rest = if number + 1 < pages { "more" } else { "" };
            let all: Vec<_> =
                (0..items).map(|item| json!({"metadata": {"name": format!("{number}-{item}")}})).collect();
            let list =
                json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"continue": rest}, "items": all});
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))))
        };
        (Api::default_namespaced(Client::new(tower::service_fn(answer), "default")), asked)
    }

    #[tokio::test]
    async fn a_list_has_an_end() {
        // Pages, objects on each, objects wanted at most, after which `each` breaks off; then objects handed on, or none, and requests.
        for (count, items, most, breaks, wanted, requests) in [
            (1, 0, 10, 100, Some(0), 1),
            (3, 2, 6, 100, Some(6), 3),
            (3, 2, 5, 100, None, 3),
            (3, 2, 6, 3, None, 2),
            (PAGES_MAX, 1, 1000, 1000, Some(PAGES_MAX), PAGES_MAX),
            (PAGES_MAX + 1, 0, 10, 100, None, PAGES_MAX),
            (usize::MAX, 2, 50, 100, None, 26),
        ] {
            let (api, asked) = played(count, items);
            let mut seen = 0;
            let listed = pages(&api, &ListParams::default().labels("a"), (2, most), |_| {
                seen += 1;
                if seen < breaks { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .await;
            let what = format!("{count} {items} {most} {breaks}");
            assert_eq!(listed.is_ok().then_some(seen), wanted, "{what}");
            assert_eq!(asked.load(Ordering::Relaxed), requests, "{what}");
        }
    }
}
