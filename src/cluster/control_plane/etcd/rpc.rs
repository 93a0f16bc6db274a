//! The few calls of etcd's gRPC interface that are needed, over HTTP/2.

use std::any::Any;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

/// Bytes of an answer.
const ANSWER_MAX: usize = 1 << 20;
/// Bytes before each message: whether it is packed, and its length.
const PREFIX: usize = 5;

pub(super) const MEMBER_LIST: &str = "/etcdserverpb.Cluster/MemberList";
pub(super) const MEMBER_REMOVE: &str = "/etcdserverpb.Cluster/MemberRemove";
pub(super) const MOVE_LEADER: &str = "/etcdserverpb.Maintenance/MoveLeader";
pub(super) const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

#[derive(Clone, PartialEq, Message)]
pub(super) struct EmptyRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberMessage {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(bool, tag = "5")]
    pub(super) is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListRequest {
    #[prost(bool, tag = "1")]
    pub(super) linearizable: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) members: Vec<MemberMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberRemoveRequest {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberRemoveResponse {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MoveLeaderRequest {
    #[prost(uint64, tag = "1")]
    pub(super) target_id: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MoveLeaderResponse {}

/// Without an action it asks.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmRequest {
    #[prost(int32, tag = "1")]
    pub(super) action: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmMember {
    #[prost(uint64, tag = "1")]
    pub(super) member_id: u64,
    #[prost(int32, tag = "2")]
    pub(super) alarm: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) alarms: Vec<AlarmMember>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
}

/// A connection to one member.
pub(super) struct Channel {
    send: SendRequest<Full<Bytes>>,
    connection: AbortHandle,
    /// What the connection goes through.
    _tunnel: Box<dyn Any + Send>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Channel {
    pub(super) async fn open<S, T>(stream: S, tunnel: T) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        T: Send + 'static,
    {
        let opened = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (send, connection) = opened.map_err(|error| error.to_string())?;
        let connection = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to etcd broke");
            }
        });
        Ok(Self { send, connection: connection.abort_handle(), _tunnel: Box::new(tunnel) })
    }

    /// Calls a procedure.
    pub(super) async fn call<A: Message + Default>(&mut self, path: &str, message: &impl Message) -> Result<A, String> {
        let request = Request::post(format!("http://localhost{path}"))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .body(Full::new(framed(message)))
            .map_err(|error| error.to_string())?;
        self.send.ready().await.map_err(|error| error.to_string())?;
        let response = self.send.send_request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Err(format!("etcd answers {}", head.status));
        }
        // An answer without a message says how it went in its head.
        refused(&head.headers)?;
        let whole = Limited::new(body, ANSWER_MAX).collect().await.map_err(|error| error.to_string())?;
        if let Some(trailers) = whole.trailers() {
            refused(trailers)?;
        }
        unframed(&whole.to_bytes())
    }
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.extend_from_slice(&message.encode_to_vec());
    frame.freeze()
}

fn unframed<A: Message + Default>(frame: &[u8]) -> Result<A, String> {
    let bad = || "etcd's answer is none of its own".to_owned();
    let (prefix, message) = frame.split_at_checked(PREFIX).ok_or_else(bad)?;
    let [packed, length @ ..] = prefix else { return Err(bad()) };
    let length = <[u8; 4]>::try_from(length).map(u32::from_be_bytes).map_err(|_| bad())?;
    if *packed != 0 || usize::try_from(length) != Ok(message.len()) {
        return Err(bad());
    }
    A::decode(message).map_err(|_| bad())
}

/// What etcd says when it does not do what it was asked for.
fn refused(headers: &HeaderMap) -> Result<(), String> {
    let Some(status) = headers.get("grpc-status") else { return Ok(()) };
    if status == "0" {
        return Ok(());
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let message = percent_encoding::percent_decode_str(text("grpc-message")).decode_utf8_lossy();
    let message: String = message.chars().filter(|char| !char.is_control()).take(300).collect();
    Err(format!("etcd answers with code {}: {message}", text("grpc-status")))
}

#[cfg(test)]
pub(super) mod frames {
    use super::*;

    /// A message as it is sent.
    pub(crate) fn sent(message: &impl Message) -> Bytes {
        framed(message)
    }

    /// A message that was sent.
    pub(crate) fn read<A: Message + Default>(frame: &[u8]) -> Result<A, String> {
        unframed(frame)
    }
}
