//! Whether a text is an expression of CEL, by the grammar of the language (cel-spec, langdef.md, "Syntax"), in one pass.
//!
//! The parser that makes a tree of it looks for ways out of what is no expression, and at deep nesting, for minutes and in
//! gigabytes. So it is given nothing but expressions, and none that is nested deeply.

use super::DEPTH_MAX;

/// Nesting of brackets and of the last parts of `a ? b : c`.
const NESTED_MAX: usize = 64;
/// Parts of a chain that is nested in the tree: `a + b - c`, `a.b[c].d()`, `!!a`.
const CHAIN_MAX: usize = DEPTH_MAX;

/// Times that minus signs may stand in a row. The parser doubles its work with each that is within another, `--[--[`.
const MINUSES_MAX: usize = 8;

/// Why a text is not read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum NoExpression {
    #[error("Syntax error: {found} where {wanted} is expected, at byte {at}")]
    Syntax { at: usize, found: String, wanted: &'static str },
    #[error("must not be nested deeper than {NESTED_MAX}")]
    Nested,
    #[error("must not have more than {CHAIN_MAX} operators in a row without brackets")]
    Long,
    #[error("must not have two minus signs in a row more than {MINUSES_MAX} times")]
    Minuses,
}

/// Reads a text as an expression.
pub(super) fn check(text: &str) -> Result<(), NoExpression> {
    let mut reader = CelParser { rest: text, total: text.len(), next: CelToken::End, at: 0, nested: 0, minuses: 0 };
    reader.advance()?;
    reader.expression()?;
    match reader.next {
        CelToken::End => Ok(()),
        _ => Err(reader.unexpected("an operator or the end")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CelToken<'t> {
    End,
    Name(&'t str),
    /// In backquotes.
    Escaped,
    /// A number without a sign, a text, bytes, or a word that stands for a value.
    Literal,
    /// An operator or a bracket.
    Sign(&'static str),
}

/// Longer ones first.
const SIGNS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%", "in",
];

struct CelParser<'t> {
    rest: &'t str,
    total: usize,
    next: CelToken<'t>,
    /// Where the next token begins, in bytes.
    at: usize,
    nested: usize,
    minuses: usize,
}

type ParseResult = Result<(), NoExpression>;

impl<'t> CelParser<'t> {
    fn unexpected(&self, wanted: &'static str) -> NoExpression {
        let found = match self.next {
            CelToken::End => "the end".to_owned(),
            CelToken::Name(name) => format!("{:?}", name.chars().take(32).collect::<String>()),
            CelToken::Escaped => "a name in backquotes".to_owned(),
            CelToken::Literal => "a value".to_owned(),
            CelToken::Sign(sign) => format!("{sign:?}"),
        };
        NoExpression::Syntax { at: self.at, found, wanted }
    }

    fn advance(&mut self) -> ParseResult {
        loop {
            self.rest = self.rest.trim_start_matches(['\t', ' ', '\r', '\n', '\u{c}']);
            let Some(comment) = self.rest.strip_prefix("//") else { break };
            self.rest = comment.find('\n').map_or("", |end| &comment[end..]);
        }
        self.at = self.total - self.rest.len();
        let (token, length) = self.token()?;
        self.next = token;
        self.rest = &self.rest[length..];
        Ok(())
    }

    fn token(&self) -> Result<(CelToken<'t>, usize), NoExpression> {
        let rest = self.rest;
        let Some(first) = rest.chars().next() else { return Ok((CelToken::End, 0)) };
        if let Some(length) = quoted(rest) {
            let syntax =
                || NoExpression::Syntax { at: self.at, found: "a text without an end".into(), wanted: "a value" };
            return length.map(|length| (CelToken::Literal, length)).ok_or_else(syntax);
        }
        if first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|next: char| next.is_ascii_digit())) {
            return Ok((CelToken::Literal, number(rest)));
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let is_part = |part: char| part.is_ascii_alphanumeric() || part == '_';
            let length = rest.find(|part| !is_part(part)).unwrap_or(rest.len());
            let token = match &rest[..length] {
                "true" | "false" | "null" => CelToken::Literal,
                "in" => CelToken::Sign("in"),
                name => CelToken::Name(name),
            };
            return Ok((token, length));
        }
        if first == '`' {
            let is_part = |part: char| part.is_ascii_alphanumeric() || "_.-/ ".contains(part);
            let inner = rest[1..].find(|part| !is_part(part)).unwrap_or(rest.len() - 1);
            if inner > 0 && rest[1 + inner..].starts_with('`') {
                return Ok((CelToken::Escaped, inner + 2));
            }
        }
        match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            Some(sign) => Ok((CelToken::Sign(sign), sign.len())),
            None => {
                let found = format!("{first:?}");
                Err(NoExpression::Syntax { at: self.at, found, wanted: "a name, a value or an operator" })
            }
        }
    }

    fn is(&self, sign: &str) -> bool {
        self.next == CelToken::Sign(self::sign(sign))
    }

    /// Whether the next token is this sign; then it is passed.
    fn pass(&mut self, sign: &str) -> Result<bool, NoExpression> {
        let is = self.is(sign);
        if is {
            self.advance()?;
        }
        Ok(is)
    }

    fn demand(&mut self, sign: &'static str) -> ParseResult {
        if self.pass(sign)? { Ok(()) } else { Err(self.unexpected(sign)) }
    }

    /// `expr`: with what follows `?`.
    fn expression(&mut self) -> ParseResult {
        self.nested += 1;
        if self.nested > NESTED_MAX {
            return Err(NoExpression::Nested);
        }
        self.operands()?;
        if self.pass("?")? {
            self.operands()?;
            self.demand(":")?;
            self.expression()?;
        }
        self.nested -= 1;
        Ok(())
    }

    /// Operands with operators of two of them in between.
    fn operands(&mut self) -> ParseResult {
        const EVEN: [&str; 2] = ["&&", "||"];
        const NESTING: [&str; 12] = ["==", "!=", "<=", ">=", "<", ">", "in", "+", "-", "*", "/", "%"];
        let mut chain = 0;
        loop {
            self.operand()?;
            match self.next {
                CelToken::Sign(sign) if EVEN.contains(&sign) => chain = 0,
                CelToken::Sign(sign) if NESTING.contains(&sign) => chain += 1,
                _ => return Ok(()),
            }
            if chain > CHAIN_MAX {
                return Err(NoExpression::Long);
            }
            self.advance()?;
        }
    }

    /// `unary`
    fn operand(&mut self) -> ParseResult {
        let mut signs = 0;
        let sign = if self.is("!") { "!" } else { "-" };
        while self.pass(sign)? {
            signs += 1;
            if signs > NESTED_MAX {
                return Err(NoExpression::Nested);
            }
        }
        self.minuses += usize::from(signs > 1 && sign == "-");
        if self.minuses > MINUSES_MAX {
            return Err(NoExpression::Minuses);
        }
        // Names alone may be the name of a message.
        let mut names = self.primary()?;
        let mut chain = 0;
        loop {
            if self.pass(".")? {
                let optional = self.pass("?")?;
                names &= !optional && matches!(self.next, CelToken::Name(_));
                match self.next {
                    CelToken::Name(_) => {
                        self.advance()?;
                        if !optional && self.is("(") {
                            names = false;
                            self.arguments()?;
                        }
                    }
                    CelToken::Escaped => self.advance()?,
                    _ => return Err(self.unexpected("a field's name")),
                }
            } else if self.pass("[")? {
                names = false;
                self.pass("?")?;
                self.expression()?;
                self.demand("]")?;
            } else if names && self.is("{") {
                names = false;
                self.fields()?;
            } else {
                return Ok(());
            }
            chain += 1;
            if chain > CHAIN_MAX {
                return Err(NoExpression::Long);
            }
        }
    }

    /// Whether it is a name alone.
    fn primary(&mut self) -> Result<bool, NoExpression> {
        match self.next {
            CelToken::Literal => self.advance()?,
            CelToken::Name(_) => return self.name(),
            CelToken::Sign(".") => {
                self.advance()?;
                if !matches!(self.next, CelToken::Name(_)) {
                    return Err(self.unexpected("a name"));
                }
                return self.name();
            }
            CelToken::Sign("(") => {
                self.advance()?;
                self.expression()?;
                self.demand(")")?;
            }
            CelToken::Sign("[") => {
                self.advance()?;
                self.entries("]", false)?;
            }
            CelToken::Sign("{") => {
                self.advance()?;
                self.entries("}", true)?;
            }
            _ => return Err(self.unexpected("a value")),
        }
        Ok(false)
    }

    fn name(&mut self) -> Result<bool, NoExpression> {
        self.advance()?;
        let called = self.is("(");
        if called {
            self.arguments()?;
        }
        Ok(!called)
    }

    fn arguments(&mut self) -> ParseResult {
        self.demand("(")?;
        if self.pass(")")? {
            return Ok(());
        }
        loop {
            self.expression()?;
            if !self.pass(",")? {
                return self.demand(")");
            }
        }
    }

    /// Of a list or a map, to its end.
    fn entries(&mut self, end: &'static str, pairs: bool) -> ParseResult {
        let mut some = false;
        loop {
            // One comma may stand before the end, also in an empty one.
            if self.pass(end)? {
                return Ok(());
            }
            if !some && self.pass(",")? {
                return self.demand(end);
            }
            self.pass("?")?;
            self.expression()?;
            if pairs {
                self.demand(":")?;
                self.expression()?;
            }
            some = true;
            if !self.pass(",")? {
                return self.demand(end);
            }
        }
    }

    /// Of a message.
    fn fields(&mut self) -> ParseResult {
        self.demand("{")?;
        let mut some = false;
        loop {
            if self.pass("}")? {
                return Ok(());
            }
            if !some && self.pass(",")? {
                return self.demand("}");
            }
            self.pass("?")?;
            if !matches!(self.next, CelToken::Name(_) | CelToken::Escaped) {
                return Err(self.unexpected("a field's name"));
            }
            self.advance()?;
            self.demand(":")?;
            self.expression()?;
            some = true;
            if !self.pass(",")? {
                return self.demand("}");
            }
        }
    }
}

fn sign(text: &str) -> &'static str {
    SIGNS.iter().find(|sign| **sign == text).copied().unwrap_or_default()
}

/// How long a number at the beginning is, in bytes.
fn number(text: &str) -> usize {
    let digits = |from: usize| text[from..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |end| from + end);
    let is_unsigned = |at: usize| usize::from(text[at..].starts_with(['u', 'U']));
    if text.starts_with("0x") && text[2..].starts_with(|c: char| c.is_ascii_hexdigit()) {
        let end = text[2..].find(|c: char| !c.is_ascii_hexdigit()).map_or(text.len(), |end| end + 2);
        return end + is_unsigned(end);
    }
    let mut end = digits(0);
    if text[end..].starts_with('.') && text[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        end = digits(end + 1);
    }
    let exponent = text[end..].strip_prefix(['e', 'E']).map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest));
    match exponent {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => digits(text.len() - rest.len()),
        _ => end + is_unsigned(end),
    }
}

/// How long a text or bytes at the beginning are, in bytes; `Some(None)` when they have no end.
fn quoted(text: &str) -> Option<Option<usize>> {
    let before = text.bytes().take(3).position(|byte| matches!(byte, b'"' | b'\''))?;
    let prefix = text[..before].to_ascii_lowercase();
    if !matches!(prefix.as_str(), "" | "r" | "b" | "br") {
        return None;
    }
    let raw = prefix.ends_with('r');
    let body = &text[before..];
    let quote = &body[..1];
    let tripled = quote.repeat(3);
    let (end, lines) = if body.starts_with(&tripled) { (tripled.as_str(), true) } else { (quote, false) };
    let mut at = end.len();
    loop {
        let rest = &body[at..];
        if rest.starts_with(end) {
            return Some(Some(before + at + end.len()));
        }
        let mut chars = rest.chars();
        let length = match chars.next() {
            None => return Some(None),
            Some('\n' | '\r') if !lines => return Some(None),
            Some('\\') if !raw => match escape(chars.as_str()) {
                None => return Some(None),
                Some(length) => 1 + length,
            },
            Some(other) => other.len_utf8(),
        };
        at += length;
    }
}

/// How long what follows a backslash is, when it is one of the language's.
fn escape(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    let digits = |count: usize, radix: u32| {
        let digits = text.get(1..=count)?;
        digits.chars().all(|digit| digit.is_digit(radix)).then_some(1 + count)
    };
    match first {
        'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`' => Some(1),
        '0'..='3' => digits(2, 8),
        'x' | 'X' => digits(2, 16),
        'u' => digits(4, 16),
        'U' => digits(8, 16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kube_cel::cel::parser::Parser;
    use proptest::prelude::*;

    use super::*;

    fn parses(text: &str) -> bool {
        Parser::default().enable_optional_syntax(true).parse(text).is_ok()
    }

    #[test]
    fn expressions_are_told_from_other_texts() {
        for text in [
            "self.min <= self.max",
            "has(self.a) || !has(self.b) && self.c.all(x, x.size() > 1u && x in ['a', \"b\",])",
            "a.?b.orValue(0) == 1 ? .c.d : e ? {?'k': v, 1: 2} : {,}",
            "self.x[?0].`a-b/c` - -1.5e3 / .5 % 0x1F",
            "r'\\d' == ''",
            "b\"\\x41\" == b''",
            "'''ab''' == ''",
            "'\\u00e9\\n\\101' == '' // it ends here",
            "a.b.C{x: 1, ?y: 2,}.z",
            "duration('1h') > self.d",
            "[,] == []",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
            assert!(parses(text), "{text}");
        }
        for (text, reason) in [
            ("", "Syntax error: the end where a value is expected, at byte 0"),
            ("self.", "Syntax error: the end where a field's name is expected, at byte 5"),
            ("a b", "Syntax error: \"b\" where an operator or the end is expected, at byte 2"),
            ("(a", "Syntax error: the end where ) is expected, at byte 2"),
            ("a ? b", "Syntax error: the end where : is expected, at byte 5"),
            ("'a", "Syntax error: a text without an end where a value is expected, at byte 0"),
            ("a = b", "Syntax error: '=' where a name, a value or an operator is expected, at byte 2"),
            ("a().b{}", "Syntax error: \"{\" where an operator or the end is expected, at byte 5"),
            ("!-a", "Syntax error: \"-\" where a value is expected, at byte 1"),
        ] {
            assert_eq!(check(text).unwrap_err().to_string(), reason, "{text}");
        }
        for text in ["a?b:".repeat(2000), "(".repeat(8000), "-".repeat(8000), "a.b(".repeat(2000)] {
            assert_eq!(check(&text), Err(NoExpression::Nested));
        }
        for text in ["a+".repeat(4000), "a.".repeat(4000), String::from("a") + &"[0]".repeat(2000), "a==".repeat(2000)]
        {
            let text = if text.ends_with(']') { text } else { text + "a" };
            assert_eq!(check(&text), Err(NoExpression::Long));
        }
        for text in ["--[".repeat(9) + "1" + &"]".repeat(9), ["--a"; 9].join(" || ")] {
            assert_eq!(check(&text), Err(NoExpression::Minuses));
        }
        assert_eq!(check("- - -1 == --a || !!!b && -(-c) == -[-d][0]"), Ok(()));
        let wide = "a || b && ".repeat(700) + "a";
        assert_eq!(check(&wide), Ok(()));
    }

    proptest! {
        /// Both say the same of what is short, however odd.
        #[test]
        fn what_is_an_expression_is_what_the_parser_takes(
            tokens in prop::collection::vec(prop::sample::select(vec![
                "a", "b.c", "in", "true", "1", "2u", "1.5", ".5", "0x1f", "'t'", "r'\\'", "b'x'", "`e-s`", "==", "<=", "&&", "||", "<",
                "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*", "f(", "x.y{", "[?", ".?", "//\n", "\"\\n\"", "'\\q'",
            ]), 1..9),
        ) {
            let text = tokens.join(" ");
            let (is_expression, parses) = (check(&text).is_ok(), parses(&text));
            // This parser cannot read a hexadecimal number after a minus.
            prop_assert!(is_expression == parses || (is_expression && text.contains("- 0x1f")), "{}", text);
        }
    }
}
