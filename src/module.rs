//! Modules: what a room declares of the kinds it acts on, and how it is started.
//!
//! A [`Module`] says what everybody must know of it, whether it runs or not: its kinds, and what its controllers may do in another
//! API server. Its [`Life`] is what runs: rules and views for the API, what it counts, and what acts on machines. The list of all of
//! them is `modules`, a line each.

use std::collections::HashSet;
use std::fmt::Write as _;

use futures::future::BoxFuture;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::api::Declared;
use crate::apiserver::{AdmissionRules, Face, ObjectView, Upload};
use crate::engine::Fence;
use crate::runtime::Tasks;
use crate::store::Store;

/// What is known of a life without running it.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// The kinds that it acts on.
    pub kinds: Vec<Declared>,
    /// What its controllers do in the API server that keeps the objects.
    pub rights: &'static [Right],
}

/// What may be done with some resources, as a rule of a ClusterRole says it.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    /// API group; empty for the core kinds.
    pub group: &'static str,
    /// Plurals, and subresources as `baremetalhosts/status`.
    pub resources: &'static [&'static str],
    /// Verbs of the API.
    pub verbs: &'static [&'static str],
    /// Why, where that is not plain.
    pub reason: &'static str,
}

/// Every verb that a controller has for its own kinds.
pub const KEEPS: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete"];

/// A life that runs in this process.
pub trait Life: Send + Sync {
    /// Rules for changes, by `<group>/<plural>`. The embedded API server asks them; whoever acts judges again.
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        Vec::new()
    }

    /// Subresources that can only be read, by `<group>/<plural>` and name.
    fn views(&self) -> Vec<(&'static str, &'static str, ObjectView)> {
        Vec::new()
    }

    /// Subresources that take content, by `<group>/<plural>` and name.
    fn uploads(&self) -> Vec<(&'static str, &'static str, Upload)> {
        Vec::new()
    }

    /// The API in the words of other programs, by what the paths begin with.
    fn faces(&self) -> Vec<(&'static str, Face)> {
        Vec::new()
    }

    /// Names what it counts, for a scrape.
    fn register(&self, registry: &mut Registry) {
        let _ = registry;
    }

    /// What runs from the start of the process, whether this appliance may act or not: called once, and ended by `running.stop`.
    ///
    /// # Errors
    /// When something that it needs cannot be had.
    fn run(&self, running: &RunningLife) -> anyhow::Result<Vec<Service>> {
        let _ = running;
        Ok(Vec::new())
    }

    /// What answers machines, whether this appliance may act or not: called once, when every host is known, and ended by
    /// `running.stop`.
    ///
    /// # Errors
    /// When something that it needs cannot be had.
    fn serve(&self, running: &RunningLife) -> anyhow::Result<Vec<Service>> {
        let _ = running;
        Ok(Vec::new())
    }

    /// What acts on machines: called each time that this appliance may act, and ended by `acting.stop`.
    ///
    /// # Errors
    /// When something that it needs, as a port, cannot be had.
    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let _ = acting;
        Ok(Vec::new())
    }
}

/// With what a life runs as long as the process does.
#[derive(Clone)]
pub struct RunningLife {
    /// May always write, also what others act on: to read, above all.
    pub client: Client,
    /// What is done by itself: whatever runs now and then is one of these.
    pub tasks: Tasks,
    /// This appliance's database, whichever API server keeps the objects.
    pub store: Store,
    /// Resources that are in its memory only.
    pub in_memory: HashSet<String>,
    /// The end.
    pub stop: CancellationToken,
}

/// With what a life acts.
#[derive(Clone)]
pub struct Acting {
    /// Writes only while this appliance may act.
    pub client: Client,
    /// Whether it still may.
    pub fence: Fence,
    /// What is done by itself: whatever runs now and then is one of these.
    pub tasks: Tasks,
    /// Where views of what is not in the API are published; `None` when the objects are in another API server.
    pub store: Option<Store>,
    /// The end.
    pub stop: CancellationToken,
}

/// What runs until it is told to end: its name in messages, and itself.
pub type Service = (&'static str, BoxFuture<'static, anyhow::Result<()>>);

/// A service that cannot fail.
pub fn service(name: &'static str, run: impl Future<Output = ()> + Send + 'static) -> Service {
    (
        name,
        Box::pin(async move {
            run.await;
            Ok(())
        }),
    )
}

/// The rules of a ClusterRole, as YAML.
pub fn rules<'a>(rights: impl IntoIterator<Item = &'a Right>) -> String {
    let mut text = String::new();
    for right in rights {
        let group = if right.group.is_empty() { "\"\"" } else { right.group };
        let (resources, verbs) = (right.resources.join(", "), right.verbs.join(", "));
        if !right.reason.is_empty() {
            _ = writeln!(text, "  # {}", right.reason);
        }
        _ = write!(text, "  - apiGroups: [{group}]\n    resources: [{resources}]\n    verbs: [{verbs}]\n");
    }
    text
}
