//! Which chunks an image has, by their names: asked for each chunk that a machine reads.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ChunkName, Library, names};
use crate::image::unhex;

/// Names that are kept, of the images that were asked for last: 32 bytes for each MiB of an image that is no hole.
const KEPT_MAX: usize = 1 << 21;

/// The names of the chunks of some images. Images never change, so neither do these.
#[derive(Default)]
pub(super) struct ChunkNames {
    kept: Mutex<VecDeque<(String, Arc<[ChunkName]>)>>,
    /// Held while those of an image are made: once, however many ask for it.
    making: Mutex<()>,
}

impl ChunkNames {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, Arc<[ChunkName]>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of an image, sorted.
    fn of(&self, digest: &str) -> Option<Arc<[ChunkName]>> {
        let mut kept = self.lock();
        let at = kept.iter().position(|(of, _)| of == digest)?;
        let found = kept.remove(at)?;
        let names = found.1.clone();
        kept.push_front(found);
        Some(names)
    }

    fn keep(&self, digest: &str, names: Arc<[ChunkName]>) {
        let mut kept = self.lock();
        kept.push_front((digest.to_owned(), names));
        let mut room = KEPT_MAX;
        let mut fits = |names: &Arc<[ChunkName]>| room.checked_sub(names.len()).map(|rest| room = rest).is_some();
        let fitting = kept.iter().take_while(|(_, names)| fits(names)).count();
        kept.truncate(fitting.max(1));
    }
}

impl Library {
    /// Whether an image has a chunk, as far as that is known without a look at the disk.
    pub fn is_known_to_have(&self, digest: &str, sha256: &str) -> Option<bool> {
        let names = self.inner.chunk_names.of(digest)?;
        Some(unhex(sha256).is_some_and(|name| names.binary_search(&name).is_ok()))
    }

    /// Whether an image has a chunk; not when there is no such image. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// When its manifest is damaged, or cannot be read at the moment.
    pub fn has_chunk(&self, digest: &str, sha256: &str) -> io::Result<bool> {
        if let Some(known) = self.is_known_to_have(digest, sha256) {
            return Ok(known);
        }
        let all = &self.inner.chunk_names;
        let _one = all.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have made them meanwhile.
        if let Some(known) = self.is_known_to_have(digest, sha256) {
            return Ok(known);
        }
        let Some(manifest) = self.find(digest)? else { return Ok(false) };
        let mut made: Vec<ChunkName> = names(&manifest).collect();
        made.sort_unstable();
        made.dedup();
        all.keep(digest, made.into());
        Ok(self.is_known_to_have(digest, sha256) == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_asked_for_last_are_kept_within_a_bound() {
        let names = |count: usize| -> Arc<[ChunkName]> { vec![[0; 32]; count].into() };
        let all = ChunkNames::default();
        for digest in ["a", "b", "c"] {
            all.keep(digest, names(KEPT_MAX / 3));
        }
        assert!(all.of("a").is_some());
        all.keep("d", names(KEPT_MAX / 3));
        assert!(all.of("b").is_none(), "it was asked for longest ago");
        assert!(["a", "c", "d"].iter().all(|digest| all.of(digest).is_some()));
        all.keep("large", names(KEPT_MAX + 1));
        assert!(all.of("large").is_some() && all.of("d").is_none(), "one image is kept however large it is");
    }
}
