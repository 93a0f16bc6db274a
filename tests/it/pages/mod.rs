//! The pages of the project as tests read them: code blocks, code in a line, headings, links.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod shell;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A page of Markdown.
pub struct Page {
    /// Its path from the top of the source.
    pub path: PathBuf,
    /// Its lines, from 1, and whether they are prose: outside code blocks.
    lines: Vec<(usize, String, bool)>,
    blocks: Vec<Block>,
}

/// A fenced block of code.
#[derive(Clone, Debug)]
pub struct Block {
    /// Where it begins, as `docs/cli.md:7`.
    pub place: String,
    /// What stands behind its fence; may be empty.
    pub language: String,
    /// What is in it.
    pub text: String,
}

/// The pages for whoever runs Slipway, and those for whoever changes it.
pub fn all() -> Vec<Page> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![top.join("README.md"), top.join("CONTRIBUTING.md"), top.join("CHANGELOG.md")];
    for folder in ["docs", "docs/design"] {
        let entries = std::fs::read_dir(top.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        paths.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    paths.sort();
    paths
        .iter()
        .map(|path| Page::new(path.strip_prefix(top).unwrap(), &std::fs::read_to_string(path).unwrap()))
        .collect()
}

impl Page {
    fn new(path: &Path, text: &str) -> Self {
        let mut page = Self { path: path.to_owned(), lines: Vec::new(), blocks: Vec::new() };
        let mut open: Option<Block> = None;
        for (number, line) in text.lines().enumerate().map(|(number, line)| (number + 1, line)) {
            let fence = line.trim_start().strip_prefix("```");
            page.lines.push((number, line.to_owned(), open.is_none() && fence.is_none()));
            match (&mut open, fence) {
                (None, Some(language)) => {
                    let place = format!("{}:{number}", path.display());
                    open = Some(Block { place, language: language.to_owned(), text: String::new() });
                }
                (None, None) => {}
                (Some(_), Some(_)) => page.blocks.extend(open.take()),
                (Some(block), None) => block.text += &format!("{line}\n"),
            }
        }
        assert!(open.is_none(), "{}: a code block has no end", path.display());
        page
    }

    /// Its fenced blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Its lines outside of code blocks, each with its place.
    pub fn prose(&self) -> impl Iterator<Item = (String, &str)> {
        let prose = self.lines.iter().filter(|(_, _, prose)| *prose);
        prose.map(|(number, line, _)| (format!("{}:{number}", self.path.display()), line.as_str()))
    }

    /// Code within lines, each with its place.
    pub fn code(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (place, line) in self.prose() {
            let parts = line.split('`').collect::<Vec<_>>();
            // A span that goes on in the next line is none here.
            found.extend(
                parts
                    .iter()
                    .skip(1)
                    .step_by(2)
                    .take((parts.len() - 1) / 2)
                    .map(|code| (place.clone(), (*code).to_owned())),
            );
        }
        found
    }

    /// Where its links lead, each with its place.
    pub fn links(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (place, line) in self.prose() {
            for (at, _) in line.match_indices("](") {
                let target = line[at + 2..].split(')').next().unwrap();
                found.push((place.clone(), target.to_owned()));
            }
        }
        found
    }

    /// The anchors of its headings, as they are made of a heading's words for a link.
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let mut anchors = BTreeSet::new();
        for (_, line) in self.prose().filter(|(_, line)| line.starts_with('#')) {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || "-_ ".contains(*letter));
            let anchor: String = kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect();
            let before = seen.entry(anchor.clone()).or_default();
            anchors.insert(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
            *before += 1;
        }
        anchors
    }
}
