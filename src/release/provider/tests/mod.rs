//! The provider through the API that its users have. Hosts are played, and so is who looks after nodes.

mod attacks;
mod data_flow;
mod histories;
mod kills;
mod life;
mod scopes;
mod site;
mod updates;
