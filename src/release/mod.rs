//! The life of clusters that are made of releases, room by room: what `docs/design/release.md` says.
//!
//! A room imports rooms of its own floor or below, and never in circles; the tests in `walls` read this table too.
//!
//! | floor | room | what it is |
//! |---|---|---|
//! | work | [`lcm`] | LCMCluster and LCMMachine: whose turn it is, tokens to join, states, drains |

pub mod lcm;
