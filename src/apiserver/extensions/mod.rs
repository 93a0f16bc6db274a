//! What rooms above the API bring into it: [`admission`] has rules for changes of their kinds, views of their objects and pages,
//! [`upload`] takes content that is larger than any object, and [`face`] is the API in the words of another program.

pub(super) mod admission;
pub(super) mod face;
pub(super) mod upload;
