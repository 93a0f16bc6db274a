//! Counting the values of JSON before they are made: each takes many times its text. Pure.

use crate::json_marks::marks;

/// How many values a text has, if it is JSON: each but the first follows a comma, or is the first of what holds it.
pub(in crate::apiserver) fn count_values(text: &[u8]) -> usize {
    let (mut values, mut begins) = (1, false);
    for mark in marks(text) {
        let is_first = std::mem::replace(&mut begins, matches!(mark, b'{' | b'['));
        values += usize::from(mark == b',') + usize::from(is_first && !matches!(mark, b'}' | b']'));
    }
    values
}
