//! `GET /slipway/v1/backup`: the text of a backup as a stream, for an administrator's `slipway backup`.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header;
use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::take::BackupSource;
use crate::apiserver::{AdministratorsPage, ApiError};

/// The path.
pub const PATH: &str = "/slipway/v1/backup";

/// Bytes of a piece of the stream, and pieces that may wait for whoever reads it.
const PIECE: usize = 64 << 10;
const PIECES: usize = 4;

/// How long whoever reads it may take for a piece.
const PATIENCE: Duration = Duration::from_secs(60);

/// The page, for the API server. One backup is taken at a time; all end with `shutdown`.
pub fn page(source: BackupSource, shutdown: CancellationToken) -> AdministratorsPage {
    let places = Arc::new(Semaphore::new(1));
    Arc::new(move || {
        let (source, shutdown, places) = (source.clone(), shutdown.clone(), Arc::clone(&places));
        Box::pin(async move {
            let place = places.try_acquire_owned();
            let place = place.map_err(|_| ApiError::unavailable("a backup is being read: one at a time"))?;
            let taken = tokio::task::spawn_blocking(move || source.take(Timestamp::now())).await;
            let content = taken.map_err(anyhow::Error::from).and_then(|taken| taken);
            let content = content.map_err(|error| ApiError::internal(format!("no backup can be taken: {error:#}")))?;
            let (pieces, mut sent) = mpsc::channel::<io::Result<Bytes>>(PIECES);
            let runtime = Handle::current();
            tokio::task::spawn_blocking(move || {
                let out = StreamWriter { pieces: pieces.clone(), shutdown, runtime: runtime.clone() };
                let done = content.write(BufWriter::with_capacity(PIECE, out), |_| Ok(()));
                if let Err(error) = done.and_then(|mut out| out.flush()) {
                    tracing::warn!(%error, "cannot send a backup to its end");
                    // A connection that ends like this cannot be taken for a whole answer.
                    runtime.block_on(tokio::time::timeout(PATIENCE, pieces.send(Err(error)))).ok();
                }
                drop(place);
            });
            let stream = futures::stream::poll_fn(move |context| sent.poll_recv(context));
            let headers = [(header::CONTENT_TYPE, "application/jsonl"), (header::CACHE_CONTROL, "no-store")];
            Ok::<Response, ApiError>((headers, Body::from_stream(stream)).into_response())
        })
    })
}

/// What is written goes to the stream, as fast as it is read.
struct StreamWriter {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    shutdown: CancellationToken,
    runtime: Handle,
}

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(&bytes[..bytes.len().min(PIECE)]);
        let length = piece.len();
        let send = self.pieces.send_timeout(Ok(piece), PATIENCE);
        let sent = async {
            tokio::select! {
                () = self.shutdown.cancelled() => Err(io::Error::other("the appliance stops")),
                sent = send => sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "whoever reads it went away or is too slow")),
            }
        };
        self.runtime.block_on(sent)?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
