//! What a Cluster of bare metal wants ([`shape`], `network`), and whether it may have that ([`judge`]). Pure.

pub mod judge;
pub mod network;
pub mod shape;
