//! What all objects have: [`meta`]data, [`names`], labels and the [`selectors`] that ask for them; and of some two [`versions`].

pub(super) mod meta;
pub(super) mod names;
pub(super) mod selectors;
pub(super) mod versions;
