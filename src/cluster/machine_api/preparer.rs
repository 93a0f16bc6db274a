//! Who else has a say in a Machine: whoever makes it a node of a cluster, before its host is told what to run and before it is let go.

use futures::future::BoxFuture;
use kube::Client;

use crate::api::infrastructure::v1beta2::MachineImage;
use crate::api::machine_api::Machine;
use crate::api::metal3::SecretReference;

/// Makes Machines nodes. It is asked each time that a Machine is looked at, so it only reads, or does what may be done twice.
pub trait Preparer: Send + Sync {
    /// What a Machine is to run, and whether it is time.
    ///
    /// # Errors
    ///
    /// What the API says.
    fn prepare<'a>(
        &'a self,
        client: &'a Client,
        machine: &'a Machine,
    ) -> BoxFuture<'a, Result<Preparation, kube::Error>>;

    /// Whether the host of a Machine that goes may be let go.
    ///
    /// # Errors
    ///
    /// What the API says.
    fn leave<'a>(
        &'a self,
        client: &'a Client,
        machine: &'a Machine,
    ) -> BoxFuture<'a, Result<HostDeparture, kube::Error>>;
}

/// What a Machine is to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Preparation {
    /// What it says itself: it is of no cluster.
    #[default]
    Own,
    /// Its host is told nothing yet: why in one word, and for people.
    Wait(&'static str, String),
    /// This.
    Ready(Prepared),
}

/// What is ready for a Machine's host.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// What it runs where the Machine names no image.
    pub image: Option<MachineImage>,
    /// Secret of the Machine's namespace with user data, in place of the Machine's own.
    pub user_data: SecretReference,
    /// Fields of the Machine's value that have an effect.
    pub fields: &'static [&'static str],
}

/// Whether a host may be let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostDeparture {
    /// Now.
    Go,
    /// Not yet: for what it waits.
    Wait(String),
}
