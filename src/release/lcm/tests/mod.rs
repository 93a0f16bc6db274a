//! Clusters of releases through the API; agents and the clusters themselves are played.

mod doors;
mod journey;
mod locks;
mod luck;
mod site;
mod updates;
