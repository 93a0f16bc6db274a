//! A process that dies in the middle of its work, as tests play it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kube::Client;

/// A client whose process dies right after so many writes: of the last one nobody hears any more. It has died when the number is negative.
pub(crate) fn mortal(client: &Client, left: &Arc<AtomicI64>) -> Client {
    let (client, left) = (client.clone(), left.clone());
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, left) = (client.clone(), left.clone());
        async move {
            // What is waited for is told at each start again, by an Event, and a token that was not kept is asked for again: a life that
            // died of that would never do anything else.
            let path = request.uri().path();
            if request.method() == http::Method::GET || path.contains("/events") || path.ends_with("/token") {
                return client.send(request).await;
            }
            let before = left.fetch_sub(1, Ordering::SeqCst);
            if before > 1 {
                return client.send(request).await;
            }
            if before == 1 {
                drop(client.send(request).await);
                left.fetch_sub(1, Ordering::SeqCst);
            }
            std::future::pending().await
        }
    });
    Client::new(service, "default")
}
