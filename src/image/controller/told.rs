//! What happened to an Image, as events of it: `describe` tells its history.
//!
//! Events of what has no namespace are in `default`. Who may read that namespace need not be one who may read Images, whose names
//! and messages tell where others have theirs. So nothing is told of an Image that hosts of another namespace have imported, and
//! no event has a URL; all of it is in the Image's status.

use std::time::Duration;

use kube::{Resource, ResourceExt};
use tokio::time::timeout;

use super::{ImageContext, lock};
use crate::api::slipway::Image;
use crate::image::turns::ImageRequester;
use crate::runtime::{Note, events};

/// Who tells.
const COMPONENT: &str = "slipway-image";
/// Where events of objects without a namespace are.
const NAMESPACE: &str = "default";

/// How long an import waits until it is told.
const LONGEST: Duration = Duration::from_secs(5);

/// Something that happened to an Image.
#[derive(Debug)]
pub(super) enum ImageEvent {
    Began,
    Imported {
        size: u64,
        stored: u64,
        took: Duration,
    },
    Failed {
        message: String,
        again: bool,
    },
    /// Files of it are gone from the library.
    Lost,
    /// It was removed to make room.
    GaveWay,
    /// It was removed because no host names it.
    Unused,
}

impl ImageContext {
    /// Tells what happened. Nothing depends on it: when it cannot be told, the log has it.
    pub(super) async fn tell(&self, image: &Image, happened: ImageEvent) {
        let gone = matches!(happened, ImageEvent::GaveWay | ImageEvent::Unused);
        let told = {
            let mut told = lock(&self.shared.told);
            // Who wanted it is not known any more when nobody does.
            match gone {
                true => told.remove(&image.name_any()),
                false if may_be_told(&self.demands.of(image).requesters) => {
                    told.insert(image.name_any());
                    true
                }
                false => false,
            }
        };
        if !told {
            return;
        }
        let (object, note) = (image.object_ref(&()), note(happened));
        match timeout(LONGEST, events::publish(&self.client, COMPONENT, &object, &note)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(image = image.name_any(), %error, "cannot store an event of an image"),
            Err(_) => tracing::debug!(image = image.name_any(), "an event of an image is not stored in time"),
        }
    }
}

/// Whether those who read the namespace of the events may know of an Image that these want.
fn may_be_told(requesters: &[ImageRequester]) -> bool {
    let is_known = |requester: &ImageRequester| match requester {
        ImageRequester::ByHand => true,
        ImageRequester::Namespace(namespace) => namespace == NAMESPACE,
        ImageRequester::LeftOver => false,
    };
    !requesters.is_empty() && requesters.iter().all(is_known)
}

fn note(happened: ImageEvent) -> Note {
    let (reason, message, warning) = match happened {
        ImageEvent::Began => ("ImportStarted", "The import began".to_owned(), false),
        ImageEvent::Imported { size, stored, took } => {
            let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
            let (size, stored) = (mebibytes(size), mebibytes(stored));
            let message = format!("Imported in {}: {size} MiB, of which {stored} MiB are stored", length(took));
            ("Imported", message, false)
        }
        ImageEvent::Failed { message, again } => {
            let end = if again { "" } else { " (not tried again until the spec changes)" };
            ("ImportFailed", format!("The import failed: {}{end}", without_urls(&message)), true)
        }
        ImageEvent::Lost => {
            ("ContentLost", "Files of it are gone from the library: it is imported again".to_owned(), true)
        }
        ImageEvent::GaveWay => ("Removed", "Removed, to make room for another image".to_owned(), false),
        ImageEvent::Unused => {
            ("Removed", "Removed before it was imported: no host names it any more".to_owned(), false)
        }
    };
    Note { reason, message, warning }
}

fn length(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// A message in which no word is a URL.
fn without_urls(message: &str) -> String {
    let word = |word: &str| {
        if !word.contains("://") {
            return word.to_owned();
        }
        let begin: String = word.chars().take_while(|char| "(\"'".contains(*char)).collect();
        let end: String = word.chars().rev().take_while(|char| ":;,)\"'".contains(*char)).collect();
        format!("{begin}its source{}", end.chars().rev().collect::<String>())
    };
    message.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_imported_is_nothing_for_those_who_read_the_events() {
        let of = |namespace: &str| ImageRequester::Namespace(namespace.into());
        for (requesters, wanted) in [
            (vec![ImageRequester::ByHand], true),
            (vec![of("default")], true),
            (vec![of("default"), of("rack")], false),
            (vec![of("rack")], false),
            (vec![ImageRequester::LeftOver], false),
            (vec![], false),
        ] {
            assert_eq!(may_be_told(&requesters), wanted, "{requesters:?}");
        }
    }

    #[test]
    fn an_event_says_what_happened_and_not_where_it_is_read_from() {
        let failed = |message: &str, again| ImageEvent::Failed { message: message.into(), again };
        let imported = ImageEvent::Imported { size: 2 << 30, stored: (700 << 20) + 1, took: Duration::from_secs(34) };
        for (happened, reason, message) in [
            (ImageEvent::Began, "ImportStarted", "The import began"),
            (imported, "Imported", "Imported in 34 s: 2048 MiB, of which 701 MiB are stored"),
            (
                failed("https://user@a.example/x?sig=1: 404 Not Found (http://b/y)", true),
                "ImportFailed",
                "The import failed: its source: 404 Not Found (its source)",
            ),
            (
                failed("file:///srv/x.raw on the appliance: no such file", false),
                "ImportFailed",
                "The import failed: its source on the appliance: no such file (not tried again until the spec changes)",
            ),
        ] {
            let note = note(happened);
            assert_eq!((note.reason, note.message.as_str(), note.warning), (reason, message, reason == "ImportFailed"));
        }
        for (seconds, wanted) in [(0, "0 s"), (119, "119 s"), (125, "2 min"), (7300, "2 h")] {
            assert_eq!(length(Duration::from_secs(seconds)), wanted);
        }
    }
}
