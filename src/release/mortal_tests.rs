//! A process that dies in the middle of its work, as tests play it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kube::Client;

/// A client whose process dies right after so many writes: of the last one nobody hears any more. It has died when the number is negative.
pub(in crate::release) fn mortal(client: &Client, left: &Arc<AtomicI64>) -> Client {
    let (client, left) = (client.clone(), left.clone());
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, left) = (client.clone(), left.clone());
        async move {
            if request.method() == http::Method::GET {
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
