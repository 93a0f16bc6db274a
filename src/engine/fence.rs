//! Fencing: nothing is changed by an appliance that does not lead any more.
//!
//! The lead has an end, by this machine's monotonic clock, that every renewal puts off. It comes well before the time
//! when another appliance may take over, so whoever asks here before each change is never late.

use http::{Method, Request};
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::BoxError;
use tower::filter::FilterLayer;

/// Until when this appliance leads; `None` when it does not.
pub type LeadsUntil = Option<Instant>;

/// Whether this appliance may act. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fence(Option<watch::Receiver<LeadsUntil>>);

/// This appliance does not lead any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this appliance does not lead any more; another one goes on")]
pub struct NotLeading;

impl Fence {
    /// For an appliance that is alone with its API: always open.
    pub fn open() -> Self {
        Self(None)
    }

    /// Open until the end that was told last.
    pub fn new(leads: watch::Receiver<LeadsUntil>) -> Self {
        Self(Some(leads))
    }

    /// Whether this appliance may act now.
    ///
    /// # Errors
    ///
    /// [`NotLeading`] when it may not.
    pub fn check(&self) -> Result<(), NotLeading> {
        let Some(leads) = &self.0 else { return Ok(()) };
        let until = *leads.borrow();
        if until.is_some_and(|until| Instant::now() < until) { Ok(()) } else { Err(NotLeading) }
    }

    /// Lets only reading requests through when closed.
    pub fn layer(
        self,
    ) -> FilterLayer<impl Fn(Request<Body>) -> Result<Request<Body>, BoxError> + Clone + Send + 'static> {
        FilterLayer::new(move |request: Request<Body>| {
            if request.method() != Method::GET {
                self.check()?;
            }
            Ok(request)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use tower::{Layer, ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn who_does_not_lead_reads_only() {
        let (tell, leads) = watch::channel(None);
        let fence = Fence::new(leads);
        let service = fence
            .clone()
            .layer()
            .layer(service_fn(async |request: Request<Body>| Ok::<_, Infallible>(request.method().clone())));
        let ask = |method: Method| {
            let request = Request::builder().method(method).body(Body::empty()).unwrap();
            service.clone().oneshot(request)
        };
        let told = async |open: bool| {
            assert_eq!(fence.check().is_ok(), open);
            assert!(ask(Method::GET).await.is_ok());
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                assert_eq!(ask(method).await.is_ok(), open);
            }
        };
        told(false).await;
        tell.send_replace(Some(Instant::now() + Duration::from_secs(3600)));
        told(true).await;
        // It ended by itself.
        tell.send_replace(Some(Instant::now()));
        told(false).await;
        tell.send_replace(Some(Instant::now() + Duration::from_secs(3600)));
        told(true).await;
        tell.send_replace(None);
        told(false).await;
        assert_eq!(Fence::open().check(), Ok(()));
    }
}
