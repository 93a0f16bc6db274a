//! Numbers, or parts of a number (`25%`). Pure.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// How many that is of so many; `None` when it is neither a number nor a part.
pub(super) fn scaled(value: &IntOrString, of: usize, round_up: bool) -> Option<usize> {
    match value {
        IntOrString::Int(number) => usize::try_from(*number).ok(),
        IntOrString::String(text) => {
            let percent: usize = text.strip_suffix('%')?.parse().ok()?;
            let product = percent.checked_mul(of)?;
            Some(if round_up { product.div_ceil(100) } else { product / 100 })
        }
    }
}

/// A range as `[3-5]`, both ends included.
pub(super) fn range(text: &str) -> Option<(usize, usize)> {
    let (low, high) = text.strip_prefix('[')?.strip_suffix(']')?.split_once('-')?;
    let (low, high) = (low.parse().ok()?, high.parse().ok()?);
    (low <= high).then_some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_parts_are_read() {
        let text = |text: &str| IntOrString::String(text.to_owned());
        for (value, of, round_up, wanted) in [
            (IntOrString::Int(3), 10, true, Some(3)),
            (IntOrString::Int(-3), 10, true, None),
            (text("25%"), 10, true, Some(3)),
            (text("25%"), 10, false, Some(2)),
            (text("100%"), 7, false, Some(7)),
            (text("0%"), 7, true, Some(0)),
            (text("25"), 10, true, None),
            (text("x%"), 10, true, None),
            (text("99999999999999999999%"), 10, true, None),
        ] {
            assert_eq!(scaled(&value, of, round_up), wanted, "{value:?}");
        }
        for (text, wanted) in [
            ("[3-5]", Some((3, 5))),
            ("[0-0]", Some((0, 0))),
            ("[5-3]", None),
            ("3-5", None),
            ("[3-]", None),
            ("[99999999999999999999-1]", None),
        ] {
            assert_eq!(range(text), wanted, "{text}");
        }
    }
}
