//! Variables that Ansible takes as they are.
//!
//! Ansible evaluates each text that it uses: `{{ lookup('pipe', …) }}` in a variable runs a program on the machine that Ansible
//! runs on. A text with marks of Jinja is refused here, because INI has no way to say that one is to be left alone.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Bytes of a text as it is written. YAML takes no longer keys, and nothing here is longer.
const LONGEST: usize = 1000;

/// What begins an expression, a statement and a comment of Jinja.
const MARKS: [&str; 4] = ["{{", "{%", "{#", "#jinja2:"];

/// A text that Ansible does not evaluate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnsafeText(String);

/// Why a text cannot be in an inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextFault {
    /// Ansible would evaluate it.
    #[error("Ansible would evaluate it as a template")]
    Template,
    /// It is too long.
    #[error("it is longer than {LONGEST} bytes")]
    Long,
}

impl UnsafeText {
    /// The text as it is.
    ///
    /// # Errors
    ///
    /// When Ansible would not take it as it is.
    pub fn new(text: impl Into<String>) -> Result<Self, TextFault> {
        let text = text.into();
        if MARKS.iter().any(|mark| text.contains(mark)) {
            return Err(TextFault::Template);
        }
        if text.len() > LONGEST || quoted(&text).len() > LONGEST {
            return Err(TextFault::Long);
        }
        Ok(Self(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a variable can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// True or false; not the words.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// A text, also one that looks like something else.
    Text(UnsafeText),
    /// A list.
    List(Vec<Variable>),
    /// By name.
    Map(BTreeMap<UnsafeText, Variable>),
}

impl From<UnsafeText> for Variable {
    fn from(text: UnsafeText) -> Self {
        Self::Text(text)
    }
}

/// How the two languages write what is not a text.
pub(super) struct NonTextWords {
    pub(super) yes: &'static str,
    pub(super) no: &'static str,
}

impl Variable {
    /// On one line, every text in quotes: Python and YAML differ only in their words.
    pub(super) fn written(&self, words: &NonTextWords) -> String {
        let joined = |parts: Vec<String>| parts.join(", ");
        match self {
            Self::Flag(true) => words.yes.into(),
            Self::Flag(false) => words.no.into(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => quoted(&text.0),
            Self::List(list) => format!("[{}]", joined(list.iter().map(|one| one.written(words)).collect())),
            Self::Map(map) => {
                let pair =
                    |(name, value): (&UnsafeText, &Self)| format!("{}: {}", quoted(&name.0), value.written(words));
                format!("{{{}}}", joined(map.iter().map(pair).collect()))
            }
        }
    }
}

/// A text in double quotes, in printable ASCII without `'`, that Python and YAML read alike.
///
/// JSON's pairs of surrogates mean something else to YAML, so characters beyond the first plane are written whole.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            ' '..='~' if char != '\'' => out.push(char),
            _ => {
                let code = u32::from(char);
                // Writing to a String does not fail.
                _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_not_evaluated() {
        for text in ["{{ x }}", "a{{b", "{% x %}", "{# x #}", "{{{", "{ {{"] {
            assert_eq!(UnsafeText::new(text), Err(TextFault::Template), "{text}");
        }
        for text in ["", "{", "}", "{ {", "}}", "%}", "a\nb", "\0"] {
            assert_eq!(UnsafeText::new(text).map(|text| text.0).as_deref(), Ok(text));
        }
        assert_eq!(UnsafeText::new("a".repeat(LONGEST)), Err(TextFault::Long), "with its quotes");
        assert_eq!(UnsafeText::new("\u{1f980}".repeat(LONGEST / 8)), Err(TextFault::Long), "as it is written");
        assert!(UnsafeText::new("a".repeat(LONGEST - 2)).is_ok());
    }

    #[test]
    fn everything_is_on_one_line_of_ascii() {
        for (text, wanted) in [
            ("", r#""""#),
            ("a b", r#""a b""#),
            (r#"a"b\c"#, r#""a\"b\\c""#),
            ("it's", r#""it\x27s""#),
            ("a\nb\t\0\u{7f}", r#""a\x0ab\x09\x00\x7f""#),
            ("ä\u{2028}", r#""\xe4\u2028""#),
            ("\u{1f980}", r#""\U0001f980""#),
        ] {
            assert_eq!(quoted(text), wanted);
        }
        let text = |text: &str| UnsafeText::new(text).unwrap();
        let map = Variable::Map([(text("a"), Variable::List(vec![Variable::Flag(true), Variable::Number(-1)]))].into());
        assert_eq!(map.written(&NonTextWords { yes: "True", no: "False" }), r#"{"a": [True, -1]}"#);
    }
}
