//! What boot HTTP counts for a scrape of `/metrics`. Of what is asked for, a few kinds become labels, and nothing else.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http_body_util::BodyExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::connections::{BootConnections, ConnectionRefused};
use super::download_scheduler::DownloadScheduler;
use super::files::{HTTP_FILES, INITRD, KERNEL};

/// Answers by kind of what was asked for, and the bytes of their bodies. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct BootAnswers {
    requests: Family<BootAnswerLabels, Counter>,
    sent_bytes: Family<[(&'static str, &'static str); 1], Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BootAnswerLabels {
    kind: &'static str,
    code: &'static str,
}

impl BootAnswers {
    /// Counts an answer now, and its body as it is sent.
    pub fn count(&self, kind: &'static str, answer: Response) -> Response {
        self.requests.get_or_create(&BootAnswerLabels { kind, code: class(answer.status()) }).inc();
        let sent = self.sent_bytes.get_or_create_owned(&[("kind", kind)]);
        answer.map(|body| {
            Body::new(body.inspect_frame(move |frame| {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                sent.inc_by(bytes);
            }))
        })
    }

    /// Names them for a scrape.
    pub fn register(&self, requests: &str, sent_bytes: &str, registry: &mut Registry) {
        let about = "Answered requests, by kind of what was asked for and class of the status";
        registry.register(requests, about, self.requests.clone());
        let about = "Bytes of answers' bodies, by kind of what was asked for";
        registry.register(sent_bytes, about, self.sent_bytes.clone());
    }
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        ..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        500.. => "5xx",
    }
}

/// What a path of boot HTTP stands for.
fn kind(path: &str) -> &'static str {
    match path.split('/').nth(1) {
        Some("v2") => return "registry",
        Some("packages") => return "packages",
        _ => {}
    }
    let Some(path) = path.strip_prefix("/boot/") else { return "other" };
    match path.split_once('/') {
        None if path == "ipxe" => "script",
        None if path == "ca.pem" => "ca",
        None if path == "explain" => "explain",
        Some(("explain", "dhcp")) => "explain",
        Some(("files", KERNEL)) => "kernel",
        Some(("files", INITRD)) => "initrd",
        Some(("files", name)) if HTTP_FILES.iter().any(|(known, _)| *known == name) => "program",
        Some(("iso", _)) => "iso",
        Some(("live", _)) => "live-iso",
        Some(("host", _)) => "network-data",
        _ => "other",
    }
}

/// What one boot HTTP server counts. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct BootHttpMetrics(Arc<Inner>);

struct Inner {
    answers: BootAnswers,
    downloads: DownloadScheduler,
    /// Known once it serves.
    connections: OnceLock<BootConnections>,
    refused: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Default for Inner {
    fn default() -> Self {
        let refused = Family::<_, Counter>::default();
        // From zero: else nobody could tell the first from what was before.
        for refusal in [ConnectionRefused::Address, ConnectionRefused::Busy, ConnectionRefused::QueueFull] {
            drop(refused.get_or_create(&[("reason", reason(refusal))]));
        }
        Self {
            answers: BootAnswers::default(),
            downloads: DownloadScheduler::default(),
            connections: OnceLock::new(),
            refused,
        }
    }
}

fn reason(refusal: ConnectionRefused) -> &'static str {
    match refusal {
        ConnectionRefused::Address => "address",
        ConnectionRefused::Busy => "places",
        ConnectionRefused::QueueFull => "line",
    }
}

impl BootHttpMetrics {
    /// With who has or waits for a permit of these downloads.
    pub fn new(downloads: DownloadScheduler) -> Self {
        Self(Arc::new(Inner { downloads, ..Inner::default() }))
    }

    /// Counts the connections of these from now on.
    pub(super) fn of(&self, connections: &BootConnections) {
        // A server serves once.
        self.0.connections.set(connections.clone()).ok();
    }

    /// Counts the answer to a request for what a path [stands for](kind).
    pub(super) fn asked(&self, path: &str) -> impl FnOnce(Response) -> Response + use<> {
        let (all, kind) = (self.0.clone(), kind(path));
        move |answer| all.answers.count(kind, answer)
    }

    /// Counts a connection that was refused.
    pub(super) fn refused(&self, refusal: ConnectionRefused) {
        self.0.refused.get_or_create(&[("reason", reason(refusal))]).inc();
    }

    /// Names everything for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        let all = &*self.0;
        all.answers.register("slipway_boot_requests", "slipway_boot_sent_bytes", registry);
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let downloads = Family::<[(&'static str, &'static str); 3], Gauge>::default();
        for (queue, state, rank, count) in all.downloads.counts() {
            let labels = [("lane", queue), ("state", state), ("rank", rank.name())];
            downloads.get_or_create(&labels).set(number(count));
        }
        registry.register(
            "slipway_boot_downloads",
            "Kernels, ramdisks, what is published, and chunks of images that are sent, or wait in line for it",
            downloads,
        );
        let connections = Family::<[(&'static str, &'static str); 2], Gauge>::default();
        for (state, rank, count) in all.connections.get().map(BootConnections::counts).unwrap_or_default() {
            connections.get_or_create(&[("state", state), ("rank", rank.name())]).set(number(count));
        }
        registry.register(
            "slipway_boot_connections",
            "Connections that are answered, idle, or wait for a place",
            connections,
        );
        registry.register("slipway_boot_refused_connections", "Connections that got no place", all.refused.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_one_of_a_few_kinds() {
        let rows = [
            ("/boot/ipxe", "script"),
            ("/boot/files/vmlinuz", "kernel"),
            ("/boot/files/initrd", "initrd"),
            ("/boot/files/snponly.efi", "program"),
            ("/boot/files/evil", "other"),
            ("/boot/files/initrd/evil", "other"),
            ("/boot/iso/TICKET.iso", "iso"),
            ("/boot/live/DIGEST.iso", "live-iso"),
            ("/boot/host/TICKET.cpio", "network-data"),
            ("/boot/ca.pem", "ca"),
            ("/boot/explain", "explain"),
            ("/boot/explain/dhcp", "explain"),
            ("/boot/explain/evil", "other"),
            ("/boot/evil", "other"),
            ("/v2/", "registry"),
            ("/v2/pause/manifests/3.10", "registry"),
            ("/packages", "packages"),
            ("/packages/debs/Packages", "packages"),
            ("/v3/", "other"),
            ("/evil", "other"),
            ("", "other"),
        ];
        for (path, wanted) in rows {
            assert_eq!(kind(path), wanted, "{path}");
        }
    }
}
