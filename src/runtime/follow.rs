//! Listing and watching a kind through an API server.
//!
//! A kind's objects as an API server gives them: page by page, and what happens after a revision. Nothing here waits without
//! end, and nothing is asked for again and again without a pause.

use std::borrow::Cow;
use std::fmt::{self, Debug};
use std::time::Duration;

use futures::io::AsyncBufReadExt;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use http::{HeaderValue, header};
use kube::api::{ListParams, PartialObjectMeta, WatchParams};
use kube::core::Status;
use kube::{Api, Resource, ResourceExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::readable::Readable;

/// Objects that are asked for at once. An object of somebody's may have 1.5 MB, and a page is held in memory whole.
const PAGE: u32 = 50;
/// How long the answer to a request may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long a watch is asked to last, in seconds, and how long it may be silent before its connection counts as dead.
const LENGTH: u32 = 290;
const SILENCE: Duration = Duration::from_secs(LENGTH as u64 + 30);
/// Tries of a page, or of a watch, before everything is listed again.
const TRIES: u32 = 5;

/// How long after a fault something is tried again: at first, and at most.
pub(super) const PAUSE: Duration = Duration::from_millis(800);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why what happens cannot be followed any further.
#[derive(Debug)]
pub(super) struct WatchBroken(String);

impl WatchBroken {
    pub(super) fn ended() -> Self {
        Self("it ended".into())
    }
}

impl fmt::Display for WatchBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A part of a listing.
pub(super) struct ListPage<K> {
    pub items: Vec<Readable<K>>,
    /// Revision that it is of.
    pub revision: String,
    /// What to ask with for the rest.
    pub rest: Option<String>,
}

/// What a watch says.
pub(super) enum WatchEvent<K> {
    Put(Readable<K>),
    Gone(Readable<K>),
    /// Nothing, and everything before was told.
    Progress,
}

/// A page: the first, or that which `rest` names. When a server can give the rest at the newest revision only, it is that.
pub(super) async fn page<K>(api: &Api<Readable<K>>, mut rest: Option<String>) -> Result<ListPage<K>, WatchBroken>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (mut pause, mut error) = (PAUSE, String::new());
    for tried in 0..TRIES {
        // The page may have been too long to be read.
        let params = ListParams { limit: Some(PAGE >> tried), continue_token: rest.clone(), ..ListParams::default() };
        error = match timeout(DEADLINE, api.list(&params)).await {
            Ok(Ok(list)) => {
                let revision = list.metadata.resource_version.unwrap_or_default();
                let rest = list.metadata.continue_.filter(|token| !token.is_empty());
                return match revision.is_empty() {
                    true => Err(WatchBroken("a listing without a revision".into())),
                    false => Ok(ListPage { items: list.items, revision, rest }),
                };
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 410 => {
                let newest = status.metadata.and_then(|metadata| metadata.continue_).filter(|token| !token.is_empty());
                if newest.is_none() {
                    return Err(WatchBroken(format!("the listing: {}", status.message)));
                }
                (rest, error) = (newest, status.message);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {DEADLINE:?}"),
        };
        debug!(kind = %K::kind(&()), error, "a page of a list did not come: it is asked for again");
        sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
    Err(WatchBroken(format!("the listing: {error}")))
}

/// What happens after a revision, by as many watches as that takes.
pub(super) fn events<K>(
    api: Api<Readable<K>>,
    revision: String,
) -> impl Stream<Item = Result<WatchEvent<K>, WatchBroken>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let following = Following { api, revision, watch: None, told: false, tries: 1 };
    stream::unfold(following, |mut following| async move { Some((following.next().await, following)) })
}

/// What a watch says, each with the revision that it is of.
type WatchEvents<K> = BoxStream<'static, kube::Result<(String, WatchEvent<K>)>>;

/// A watch of what happens after a revision.
async fn watch<K>(api: &Api<Readable<K>>, revision: &str) -> kube::Result<WatchEvents<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let params = WatchParams::default().timeout(LENGTH);
    let request = kube::core::Request::new(api.resource_url()).watch(&params, revision);
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    // Events are to come one by one.
    request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let lines = Box::pin(api.clone().into_client().request_stream(request).await?).lines();
    Ok(lines.map(|line| read(&line.map_err(kube::Error::ReadEvents)?)).boxed())
}

/// A line of a watch, its fields in any order.
#[derive(Deserialize)]
struct WatchLine<'l> {
    #[serde(rename = "type")]
    kind: Cow<'l, str>,
    #[serde(borrow)]
    object: &'l RawValue,
}

fn read<K: Resource<DynamicType = ()> + DeserializeOwned>(line: &str) -> kube::Result<(String, WatchEvent<K>)> {
    let line: WatchLine<'_> = serde_json::from_str(line).map_err(kube::Error::SerdeError)?;
    let object = || serde_json::from_str::<Readable<K>>(line.object.get()).map_err(kube::Error::SerdeError);
    let happened = match &*line.kind {
        "ADDED" | "MODIFIED" => WatchEvent::Put(object()?),
        "DELETED" => WatchEvent::Gone(object()?),
        "BOOKMARK" => {
            let mark: PartialObjectMeta = serde_json::from_str(line.object.get()).map_err(kube::Error::SerdeError)?;
            return Ok((mark.metadata.resource_version.unwrap_or_default(), WatchEvent::Progress));
        }
        _ => {
            let status: Status = serde_json::from_str(line.object.get()).map_err(kube::Error::SerdeError)?;
            return Err(kube::Error::Api(status.boxed()));
        }
    };
    let (WatchEvent::Put(object) | WatchEvent::Gone(object)) = &happened else { return Ok((String::new(), happened)) };
    Ok((object.resource_version().unwrap_or_default(), happened))
}

struct Following<K> {
    api: Api<Readable<K>>,
    /// Everything up to this one was told.
    revision: String,
    watch: Option<WatchEvents<K>>,
    /// Whether the watch under way told anything.
    told: bool,
    tries: u32,
}

impl<K> Following<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn next(&mut self) -> Result<WatchEvent<K>, WatchBroken> {
        loop {
            let said = match &mut self.watch {
                None => match timeout(DEADLINE, watch(&self.api, &self.revision)).await {
                    Ok(Ok(watch)) => {
                        (self.watch, self.told) = (Some(watch), false);
                        continue;
                    }
                    Ok(Err(error)) => Some(Err(error)),
                    Err(_) => None,
                },
                Some(watch) => timeout(SILENCE, watch.next()).await.ok().flatten(),
            };
            match said {
                Some(Ok((revision, _))) if revision.is_empty() => {
                    return Err(WatchBroken("an event without a revision".into()));
                }
                Some(Ok((revision, happened))) => {
                    (self.revision, self.told, self.tries) = (revision, true, 1);
                    return Ok(happened);
                }
                Some(Err(kube::Error::Api(status))) if status.code == 410 => return Err(WatchBroken(status.message)),
                // What it was about nobody knows.
                Some(Err(error @ kube::Error::SerdeError(_))) => return Err(WatchBroken(error.to_string())),
                Some(Err(error)) => self.rest(&error.to_string()).await?,
                // Every watch ends some time.
                None if self.told => (self.watch, self.told) = (None, false),
                None => self.rest("no answer").await?,
            }
        }
    }

    /// Waits before the next try; not after the last one.
    async fn rest(&mut self, error: &str) -> Result<(), WatchBroken> {
        self.watch = None;
        if self.tries == TRIES {
            return Err(WatchBroken(error.to_owned()));
        }
        let pause = LONGEST_PAUSE.min(PAUSE * 2_u32.pow(self.tries - 1));
        warn!(kind = %K::kind(&()), error, ?pause, "a watch broke: it goes on after a pause");
        self.tries += 1;
        sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn every_line_of_a_watch_is_understood_or_an_error() {
        let map = r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#;
        let bad = r#"{"metadata":{"name":"a","resourceVersion":"8"},"data":5}"#;
        for (line, wanted) in [
            (format!(r#"{{"type":"ADDED","object":{map}}}"#), "7 put"),
            (format!(r#"{{"object":{map},"type":"MODIFIED"}}"#), "7 put"),
            (format!(r#"{{"object":{bad},"type":"MODIFIED"}}"#), "8 unread"),
            (format!(r#"{{"type":"DELETED","object":{map}}}"#), "7 gone"),
            (
                r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"9"}}}"#.into(),
                "9 progress",
            ),
            (r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#.into(), "refused 410"),
            (r#"{"type":"ADDED","object":{"data":5}}"#.into(), "nonsense"),
            ("<html>".into(), "nonsense"),
        ] {
            let said = match read::<ConfigMap>(&line) {
                Ok((at, WatchEvent::Put(Readable::Read(_)))) => format!("{at} put"),
                Ok((at, WatchEvent::Put(Readable::Unread(_)))) => format!("{at} unread"),
                Ok((at, WatchEvent::Gone(_))) => format!("{at} gone"),
                Ok((at, WatchEvent::Progress)) => format!("{at} progress"),
                Err(kube::Error::Api(status)) => format!("refused {}", status.code),
                Err(_) => "nonsense".into(),
            };
            assert_eq!(said, wanted, "{line}");
        }
    }
}
