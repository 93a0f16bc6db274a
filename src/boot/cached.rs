//! Files sent from the page cache.
//!
//! Files as boot HTTP reads them: what the kernel has in memory at once and straight into the answer, the rest on a
//! thread that may wait for the disk.
//!
//! A rack asks for the same two files again and again, so they are nearly always in memory. Handing each piece to
//! another thread and copying it once more costs a third of the throughput to one client.

use std::fs::Metadata;
use std::future::Future;
use std::io::{self, IoSliceMut, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tokio::task::{JoinHandle, spawn_blocking};
use tower_http::services::fs::{Backend, File};

/// Opens files of a folder for `ServeDir`.
#[derive(Clone, Debug)]
pub(super) struct Cached;

/// A file that is read from where it stands.
#[derive(Debug)]
pub(super) struct CachedFile {
    file: Arc<std::fs::File>,
    at: u64,
    /// What is being read from the disk, for the place where the file stands.
    awaited: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

type Opening<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

impl Backend for Cached {
    type File = CachedFile;
    type Metadata = Metadata;
    type OpenFuture = Opening<CachedFile>;
    type MetadataFuture = Opening<Metadata>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        Box::pin(async move {
            let file = tokio::fs::File::open(&path).await?.into_std().await;
            Ok(CachedFile { file: Arc::new(file), at: 0, awaited: None })
        })
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        Box::pin(tokio::fs::metadata(path))
    }
}

impl File for CachedFile {
    type Metadata = Metadata;
    type MetadataFuture<'a> = std::future::Ready<io::Result<Metadata>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        // Of an open file: no disk is waited for.
        std::future::ready(self.file.metadata())
    }
}

impl AsyncRead for CachedFile {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.awaited.is_none() {
            // Fewer bytes than asked for when the rest is not in memory; none at the end only.
            let read = preadv2(
                &*self.file,
                &mut [IoSliceMut::new(out.initialize_unfilled())],
                self.at,
                ReadWriteFlags::NOWAIT,
            );
            match read {
                Ok(length) => {
                    out.advance(length);
                    self.at += length as u64;
                    return Poll::Ready(Ok(()));
                }
                // Some file systems cannot say what they have in memory.
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
            let (file, at, length) = (Arc::clone(&self.file), self.at, out.remaining());
            self.awaited = Some(spawn_blocking(move || {
                let mut piece = vec![0; length];
                let length = file.read_at(&mut piece, at)?;
                piece.truncate(length);
                Ok(piece)
            }));
        }
        let Some(awaited) = self.awaited.as_mut() else { return Poll::Ready(Ok(())) };
        let piece = ready!(Pin::new(awaited).poll(context)).map_err(io::Error::other);
        self.awaited = None;
        let piece = piece??;
        // The buffer may be a smaller one by now.
        let fits = piece.len().min(out.remaining());
        out.put_slice(&piece[..fits]);
        self.at += fits as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncSeek for CachedFile {
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        self.awaited = None;
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(self.at))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{Advice, fadvise};
    use tokio::io::{AsyncReadExt, AsyncSeekExt};

    use super::*;

    const LENGTH: usize = 3_000_001;

    async fn file(folder: &std::path::Path) -> (CachedFile, Vec<u8>) {
        let bytes: Vec<u8> = (0..LENGTH as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let path = folder.join("file");
        std::fs::write(&path, &bytes).expect("written");
        (Cached.open(path).await.expect("opened"), bytes)
    }

    #[tokio::test]
    async fn what_is_in_memory_and_what_is_not_is_read_alike() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut file, bytes) = file(folder.path()).await;
        for cold in [false, true] {
            if cold {
                // Out of memory, as far as the kernel agrees.
                file.file.sync_all().expect("on disk");
                fadvise(file.file.as_fd(), 0, None, Advice::DontNeed).expect("advised");
            }
            file.seek(SeekFrom::Start(0)).await.expect("there");
            let mut read = Vec::new();
            file.read_to_end(&mut read).await.expect("read");
            assert!(read == bytes, "cold: {cold}");
        }
    }

    #[tokio::test]
    async fn a_part_is_read_from_where_it_is_asked_for() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut file, bytes) = file(folder.path()).await;
        let mut part = [0; 1000];
        for (to, at) in [(SeekFrom::Start(7), 7), (SeekFrom::Current(-500), 507), (SeekFrom::End(-1000), LENGTH - 1000)]
        {
            assert_eq!(file.seek(to).await.expect("there"), at as u64);
            file.read_exact(&mut part).await.expect("read");
            assert_eq!(part, bytes[at..at + 1000]);
        }
        assert_eq!(file.read(&mut part).await.expect("read"), 0);
        file.seek(SeekFrom::Current(-1_000_000_000)).await.expect_err("before the start");
        assert_eq!(File::metadata(&file).await.expect("known").len(), LENGTH as u64);
    }

    #[tokio::test]
    async fn what_the_disk_gives_after_a_seek_is_not_taken_for_what_was_asked() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut file, bytes) = file(folder.path()).await;
        let late = spawn_blocking(|| Ok(vec![1, 2, 3]));
        file.awaited = Some(late);
        file.seek(SeekFrom::Start(10)).await.expect("there");
        let mut part = [0; 100];
        file.read_exact(&mut part).await.expect("read");
        assert_eq!(part, bytes[10..110]);
        // And a larger piece than there is room for is not lost.
        file.awaited = Some(spawn_blocking({
            let piece = bytes[110..410].to_vec();
            || Ok(piece)
        }));
        file.read_exact(&mut part).await.expect("read");
        assert_eq!(part, bytes[110..210]);
        file.read_exact(&mut part).await.expect("read");
        assert_eq!(part, bytes[210..310]);
    }
}
