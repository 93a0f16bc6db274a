//! Where a field is, while a value is walked: made a text only for the fields that something is told of.

use super::{entry_at, join};

/// The way to a field from the top of a value.
#[derive(Clone, Copy)]
pub(in crate::apiserver) enum FieldPath<'p> {
    /// The value itself.
    Top,
    /// A field of what is there.
    Field(&'p FieldPath<'p>, &'p str),
    /// An entry of the list that is there.
    Entry(&'p FieldPath<'p>, usize),
}

impl FieldPath<'_> {
    /// `spec.disks[1].name`, of bounded length.
    pub fn text(&self) -> String {
        match self {
            Self::Top => String::new(),
            Self::Field(parent, name) => join(&parent.text(), name),
            Self::Entry(parent, index) => entry_at(&parent.text(), *index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FieldPath::{Entry, Field, Top};

    #[test]
    fn a_path_is_written_as_it_was_walked() {
        let spec = Field(&Top, "spec");
        let disks = Field(&spec, "disks");
        let second = Entry(&disks, 1);
        assert_eq!(Field(&second, "name").text(), "spec.disks[1].name");
        assert_eq!(Entry(&Top, 0).text(), "[0]");
        assert_eq!(Top.text(), "");
    }
}
