//! Conflicts: somebody else wrote an object in between.
//!
//! That is no fault, and nobody is to be told of it: whoever wanted to write reads the object again, and decides anew.

use std::convert::Infallible;
use std::sync::Arc;

/// An error that may be a conflict. Errors of controllers say so, or the log would warn of what is none.
pub trait Conflict {
    /// Whether it is only that somebody else wrote in between.
    fn is_conflict(&self) -> bool;
}

impl Conflict for kube::Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(status) if status.is_conflict())
    }
}

impl<E: Conflict> Conflict for Arc<E> {
    fn is_conflict(&self) -> bool {
        E::is_conflict(self)
    }
}

impl Conflict for Infallible {
    fn is_conflict(&self) -> bool {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn only_a_write_in_between_is_a_conflict() {
        for (code, reason, wanted) in [
            (409, "Conflict", true),
            (409, "AlreadyExists", false),
            (404, "NotFound", false),
            (422, "Invalid", false),
            (500, "InternalError", false),
        ] {
            let error = kube::Error::Api(Status::failure("", reason).with_code(code).boxed());
            assert_eq!(error.is_conflict(), wanted, "{code} {reason}");
            assert_eq!(Arc::new(error).is_conflict(), wanted, "{code} {reason}");
        }
        assert!(!kube::Error::LinesCodecMaxLineLengthExceeded.is_conflict());
    }
}
