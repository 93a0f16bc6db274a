//! Objects of the API that say what DHCP knows: what is due is written, one object after the other, at each change and now and then.

use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::publish::MANAGER;
use crate::runtime::SupervisedTask;

/// How often it is looked whether a status is out of date: how full a pool is, and who has an address, changes all the time.
const LOOK: Duration = Duration::from_secs(10);
/// Until a look is made again that failed.
const RETRY: Duration = Duration::from_secs(5);
/// How long the writing of an object may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// A change of an object.
#[derive(Debug)]
pub(super) enum MirrorWrite<K> {
    /// Its specification is this one; it is made where it is missing.
    Spec(K),
    /// Fields of the status of the one of this name; null takes a field away.
    Status(String, Value),
    /// The one of this name is to go.
    Gone(String),
}

/// What objects of a kind are to say.
pub(super) trait Mirror: Sync {
    /// The kind.
    type Object: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + Sync;

    /// What is to be written.
    fn due(&self, now: Timestamp) -> Vec<MirrorWrite<Self::Object>>;
}

/// The changes of a watched value, until its sender is gone.
pub(super) fn changes<T: Clone + Send + Sync + 'static>(of: watch::Receiver<T>) -> impl Stream<Item = ()> + Send {
    stream::unfold(of, async |mut of| of.changed().await.ok().map(|()| ((), of)))
}

/// Keeps the objects until told to stop; looks at each of `wakes`. Each time is a run of the task.
pub(super) async fn keep<M: Mirror>(
    mirror: &M,
    client: Client,
    task: SupervisedTask,
    wakes: impl Stream<Item = ()> + Send,
    shutdown: CancellationToken,
) {
    let api: Api<M::Object> = Api::all(client);
    let mut wakes = std::pin::pin!(wakes);
    let mut failing = false;
    loop {
        let pause = match task.run(write(mirror, &api)).await {
            Ok(()) => {
                failing = false;
                LOOK
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    let kind = M::Object::kind(&());
                    tracing::warn!(%error, %kind, "cannot write what DHCP knows into its objects: trying again");
                }
                RETRY
            }
        };
        task.next_in(pause);
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            Some(()) = wakes.next(), if !failing => {}
        }
    }
}

/// An object was not written.
#[derive(Debug, thiserror::Error)]
enum MirrorWriteError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {} s", DEADLINE.as_secs())]
    Deadline,
}

/// Writes what is due. One that cannot be written keeps no other from it; an API server that does not answer does.
async fn write<M: Mirror>(mirror: &M, api: &Api<M::Object>) -> Result<(), MirrorWriteError> {
    let mut result = Ok(());
    for write in mirror.due(Timestamp::now()) {
        let call = async {
            match &write {
                MirrorWrite::Spec(object) => {
                    let parameters = PatchParams::apply(MANAGER).force();
                    api.patch(&object.name_any(), &parameters, &Patch::Apply(object)).await.map(drop)
                }
                MirrorWrite::Status(name, status) => {
                    let patch = Patch::Merge(json!({ "status": status }));
                    api.patch_status(name, &PatchParams::default(), &patch).await.map(drop)
                }
                MirrorWrite::Gone(name) => api.delete(name, &DeleteParams::default()).await.map(drop),
            }
        };
        match tokio::time::timeout(DEADLINE, call).await {
            // It went meanwhile.
            Ok(Err(kube::Error::Api(error))) if error.code == 404 => {}
            Ok(Ok(())) => {}
            Ok(Err(error)) => result = Err(error.into()),
            Err(_) => return Err(MirrorWriteError::Deadline),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::slipway::{Reservation, ReservationSpec};
    use crate::apiserver::{ApiServer, FieldError};
    use crate::store::{Store, StoreOptions};

    struct Both;

    impl Mirror for Both {
        type Object = Reservation;

        fn due(&self, _: Timestamp) -> Vec<MirrorWrite<Reservation>> {
            let of = |last: u8| ReservationSpec {
                mac_address: format!("02:00:00:00:00:0{last}"),
                address: format!("10.0.0.{last}"),
                hostname: None,
            };
            vec![MirrorWrite::Spec(Reservation::new("a", of(1))), MirrorWrite::Spec(Reservation::new("b", of(2)))]
        }
    }

    #[tokio::test]
    async fn an_object_that_is_refused_keeps_no_other_from_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let options =
            StoreOptions { path: folder.path().join("db"), key_file: folder.path().join("key"), history: 100 };
        let store = Store::open(options).unwrap();
        let api = ApiServer::new(store, &crate::modules::kinds(), CancellationToken::new()).await.unwrap();
        api.add_admission(
            "slipway.dev/reservations",
            Arc::new(|request| match request.object["metadata"]["name"].as_str() {
                Some("a") => Err(vec![FieldError::forbidden("metadata.name", "not this one")]),
                _ => Ok(()),
            }),
        );
        let objects: Api<Reservation> = Api::all(api.client());
        let error = write(&Both, &objects).await.unwrap_err().to_string();
        assert!(error.contains("not this one"), "{error}");
        assert!(objects.get_opt("b").await.unwrap().is_some() && objects.get_opt("a").await.unwrap().is_none());
    }
}
