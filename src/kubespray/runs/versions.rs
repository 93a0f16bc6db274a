//! Versions of Python packages, and what is wanted of them.
//!
//! The part of the [version specifiers](https://packaging.python.org/en/latest/specifications/version-specifiers/) that
//! kubespray's `requirements.txt` and `meta/runtime.yml` use: releases of numbers, comparisons, `~=` and `== 1.2.*`.

use std::cmp::Ordering;
use std::fmt;

/// Longest text of a version or of what is wanted of one, in bytes.
const TEXT_MAX: usize = 200;
/// Most numbers of a version.
const NUMBERS_MAX: usize = 8;

/// A version: numbers, and whether it is a release or comes before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedVersion {
    numbers: Vec<u64>,
    before_release: bool,
}

impl ParsedVersion {
    /// `2.18.19`, `v2.18`, `2.19.0rc1`, `1.0.post1`, `1.0+local`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        if text.len() > TEXT_MAX {
            return None;
        }
        let text = text.split('+').next().unwrap_or_default();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (release, rest) = text.split_at(end);
        let numbers: Option<Vec<u64>> =
            release.trim_end_matches('.').split('.').map(|part| part.parse().ok()).collect();
        let numbers = numbers.filter(|numbers| numbers.len() <= NUMBERS_MAX)?;
        let rest = rest.trim_start_matches(['.', '-', '_']).to_ascii_lowercase();
        let before_release = match rest.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('.') {
            "" | "post" | "rev" | "r" => false,
            "a" | "b" | "c" | "rc" | "alpha" | "beta" | "pre" | "preview" | "dev" => true,
            _ => return None,
        };
        Some(Self { numbers, before_release })
    }

    /// Whether it begins with these numbers.
    fn begins_with(&self, numbers: &[u64]) -> bool {
        numbers.iter().enumerate().all(|(at, number)| self.numbers.get(at).copied().unwrap_or(0) == *number)
    }
}

impl Ord for ParsedVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        let length = self.numbers.len().max(other.numbers.len());
        let padded = |numbers: &[u64]| (0..length).map(|at| numbers.get(at).copied().unwrap_or(0)).collect::<Vec<_>>();
        let numbers = padded(&self.numbers).cmp(&padded(&other.numbers));
        // What comes before a release is older than the release.
        numbers.then_with(|| other.before_release.cmp(&self.before_release))
    }
}

impl PartialOrd for ParsedVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VersionOperator {
    Same,
    Other,
    Least,
    Most,
    Above,
    Below,
    /// `~=`: at least this, and the same but for the last number.
    Compatible,
    /// `== 1.2.*`
    Within,
}

/// What is wanted of a version: all clauses hold.
#[derive(Clone, Debug)]
pub(super) struct Specifier {
    text: String,
    clauses: Vec<(VersionOperator, ParsedVersion)>,
}

impl Specifier {
    /// `>=2.18.0,<2.19.0`. Without any clause every version is right.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() > TEXT_MAX {
            return None;
        }
        let clauses = text.split(',').map(str::trim).filter(|clause| !clause.is_empty()).map(clause);
        Some(Self { text: text.to_owned(), clauses: clauses.collect::<Option<_>>()? })
    }

    /// At least `least`, and below `below`.
    pub(super) fn window(least: &str, below: &str) -> Option<Self> {
        Self::parse(&format!(">={least},<{below}"))
    }

    pub(super) fn holds(&self, version: &ParsedVersion) -> bool {
        self.clauses.iter().all(|(comparison, wanted)| match comparison {
            VersionOperator::Same => version.cmp(wanted).is_eq(),
            VersionOperator::Other => version.cmp(wanted).is_ne(),
            VersionOperator::Least => version >= wanted,
            VersionOperator::Most => version <= wanted,
            VersionOperator::Above => version > wanted,
            VersionOperator::Below => version < wanted,
            VersionOperator::Compatible => {
                version >= wanted && version.begins_with(&wanted.numbers[..wanted.numbers.len().saturating_sub(1)])
            }
            VersionOperator::Within => version.begins_with(&wanted.numbers),
        })
    }
}

impl fmt::Display for Specifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() { f.write_str("any version") } else { f.write_str(&self.text) }
    }
}

fn clause(text: &str) -> Option<(VersionOperator, ParsedVersion)> {
    let comparisons = [
        ("===", VersionOperator::Same),
        ("==", VersionOperator::Same),
        ("!=", VersionOperator::Other),
        (">=", VersionOperator::Least),
        ("<=", VersionOperator::Most),
        ("~=", VersionOperator::Compatible),
        (">", VersionOperator::Above),
        ("<", VersionOperator::Below),
    ];
    let (rest, comparison) =
        comparisons.into_iter().find_map(|(sign, comparison)| Some((text.strip_prefix(sign)?, comparison)))?;
    let rest = rest.trim();
    match rest.strip_suffix(".*") {
        Some(prefix) if comparison == VersionOperator::Same => {
            Some((VersionOperator::Within, ParsedVersion::parse(prefix)?))
        }
        Some(_) => None,
        None => Some((comparison, ParsedVersion::parse(rest)?)),
    }
}

/// What a `requirements.txt` wants: packages by their normalised name. Lines with a marker, an option or an address are left out:
/// whether they count, pip decides.
pub(super) fn requirements(text: &str) -> Vec<(String, Specifier)> {
    let line = |line: &str| {
        let line = line.split(" #").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with(['#', '-']) || line.contains([';', '@', '/']) {
            return None;
        }
        let end =
            line.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))).unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        // An extra of the package: `name[extra]`.
        let rest = if rest.starts_with('[') { rest.split_once(']')?.1 } else { rest };
        Some((normalised(name), Specifier::parse(rest)?))
    };
    text.lines().filter_map(line).collect()
}

/// A package's name as it is compared: small letters, and one `-` for each row of `-`, `_` and `.`
/// ([names](https://packaging.python.org/en/latest/specifications/name-normalization/)).
pub(super) fn normalised(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifiers_hold_as_pip_has_them() {
        for (wanted, version, holds) in [
            (">=2.18.0,<2.19.0", "2.18.19", true),
            (">=2.18.0,<2.19.0", "2.18", true),
            (">=2.18.0,<2.19.0", "2.19.0", false),
            (">=2.18.0,<2.19.0", "2.17.9", false),
            (">=2.18.0", "2.18.0rc1", false),
            ("==11.13.0", "11.13", true),
            ("==11.13.0", "11.13.1", false),
            ("==11.13.*", "11.13.4", true),
            ("==11.13.*", "11.14.0", false),
            ("~=1.4.2", "1.4.9", true),
            ("~=1.4.2", "1.5.0", false),
            ("~=1.4.2", "1.4.1", false),
            ("!=1.0", "1.0.0", false),
            ("<6", "5.0.0", true),
            ("<6", "10.0", false),
            ("", "0.1", true),
            ("==1.0", "1.0.post1", true),
            ("==1.0", "1.0+local", true),
        ] {
            let version_of = ParsedVersion::parse(version).unwrap();
            assert_eq!(Specifier::parse(wanted).unwrap().holds(&version_of), holds, "{version} {wanted}");
        }
    }

    #[test]
    fn what_is_no_version_is_none() {
        for text in ["", "x", "1.x", "1..2", "1.0junk", "99999999999999999999", &"1.".repeat(200), "1.1.1.1.1.1.1.1.1"]
        {
            assert_eq!(ParsedVersion::parse(text), None, "{text}");
        }
        for text in ["2.0", "=2", ">=", ">=x", "<=1.*", &">1,".repeat(100)] {
            assert!(Specifier::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn requirements_are_read_line_by_line() {
        let text = "ansible==11.13.0\n# why\nbcrypt<6  # why\nRuamel.YAML[jinja2]>=0.18\n-r other.txt\n\
                    x @ https://example.org/x\nold==1 ; python_version < '3'\n\nbad===\n";
        let found: Vec<_> = requirements(text).into_iter().map(|(name, wanted)| format!("{name} {wanted}")).collect();
        assert_eq!(found, ["ansible ==11.13.0", "bcrypt <6", "ruamel-yaml >=0.18"]);
    }
}
