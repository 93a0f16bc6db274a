//! Clusters and machines through the API, with providers that the tests play by the contract.

mod clusters;
mod deployments;
mod health;
mod machines;
mod sets;
mod site;
