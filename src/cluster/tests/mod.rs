//! The life of clusters with all of its rooms together, through the API that users have.
//!
//! API server and store are those of an appliance, and so are all controllers. Hosts are played: a player ([`rack`]) writes into
//! their status what the host controller would, and has "machines" do what their user data says, in a cluster that is played too.
//! With the program itself the hosts could be simulated, but a cluster to be joined could not: nodes with kubelets are what
//! `make cluster` has.

mod boot;
mod founding;
mod input;
mod journal;
mod luck;
mod manifests;
mod rack;
mod site;
mod steps;
