//! Text in columns, aligned as Go's tabwriter does it for kubectl.

use super::table::harmless;
use super::terminal::{PLAIN, color_of};

/// Aligns a text with tabs: a column is a run of lines that have the cell, as wide as its widest cell and `padding`.
/// The last cell of a line belongs to no column.
pub(super) fn align(text: &str, padding: usize) -> String {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let mut out = String::new();
    block(&lines, &mut Vec::new(), padding, &mut out);
    out
}

fn block(lines: &[Vec<&str>], widths: &mut Vec<usize>, padding: usize, out: &mut String) {
    let column = widths.len();
    let has = |line: &Vec<&str>| line.len() > column + 1;
    let mut at = 0;
    while at < lines.len() {
        if !has(&lines[at]) {
            write_line(&lines[at], widths, out);
            at += 1;
            continue;
        }
        let end = lines[at..].iter().position(|line| !has(line)).map_or(lines.len(), |length| at + length);
        let widest = lines[at..end].iter().map(|line| width(line[column])).max().unwrap_or_default();
        widths.push(widest + padding);
        block(&lines[at..end], widths, padding, out);
        widths.pop();
        at = end;
    }
}

fn write_line(cells: &[&str], widths: &[usize], out: &mut String) {
    for (index, cell) in cells.iter().enumerate() {
        out.push_str(cell);
        if let Some(wanted) = widths.get(index).filter(|_| index + 1 < cells.len()) {
            out.extend(std::iter::repeat_n(' ', wanted.saturating_sub(width(cell))));
        }
    }
    out.push('\n');
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// Rows of equally many cells, aligned; a later batch is never narrower than an earlier one.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct AlignedRows {
    widths: Vec<usize>,
}

/// Space after a cell, and the least width of a column (kubectl's settings).
pub(super) const PADDING: usize = 3;
pub(super) const LEAST: usize = 6;

/// How rows are shown on a terminal.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct TableStyle {
    /// The longest line; one that is longer ends with an ellipsis.
    pub width: Option<usize>,
    /// Cells whose words have colours.
    pub colored: Vec<usize>,
    /// Whether the first row are headings, which have no colours.
    pub headed: bool,
}

impl TableStyle {
    /// A row that is cut where the line ends.
    fn write(&self, cells: &[&str], widths: &[usize], is_heading: bool, out: &mut String) {
        let whole = {
            let mut line = String::new();
            write_line(cells, widths, &mut line);
            width(line.trim_end())
        };
        let cut = self.width.filter(|room| whole > *room);
        let mut left = cut.map_or(usize::MAX, |room| room.saturating_sub(1));
        for (index, cell) in cells.iter().enumerate() {
            let shown: String = cell.chars().take(left).collect();
            left -= width(&shown);
            match color_of(cell).filter(|_| !is_heading && self.colored.contains(&index) && !shown.is_empty()) {
                Some(color) => *out += &format!("{color}{shown}{PLAIN}"),
                None => out.push_str(&shown),
            }
            let wanted = widths.get(index).filter(|_| index + 1 < cells.len()).copied().unwrap_or_default();
            let spaces = wanted.saturating_sub(width(cell)).min(left);
            out.extend(std::iter::repeat_n(' ', spaces));
            left -= spaces;
        }
        out.push_str(if cut.is_some() { "…\n" } else { "\n" });
    }
}

impl AlignedRows {
    /// The rows as lines, whole and without colours.
    pub(in crate::cli) fn lines(&mut self, rows: &[Vec<String>]) -> String {
        self.shown(rows, &TableStyle::default())
    }

    /// The rows as lines, with nothing of their own that a terminal would obey: headings, too, are what somebody defined.
    pub(in crate::cli) fn shown(&mut self, rows: &[Vec<String>], look: &TableStyle) -> String {
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
        for row in &rows {
            self.widths.resize(self.widths.len().max(row.len()), LEAST);
            for (known, cell) in self.widths.iter_mut().zip(row) {
                *known = (*known).max(width(cell) + PADDING);
            }
        }
        let mut out = String::new();
        for (index, row) in rows.iter().enumerate() {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            look.write(&cells, &self.widths, look.headed && index == 0, &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_end_where_lines_without_them_begin() {
        // The last line is of the same run, though of another depth.
        let text = "Name:\tweb-1\nNamespace:\track\nSpec:\n  Bmc:\n    Address:\tipmi://x\n    Verify:\ttrue\nEvents:\t<none>\n";
        let wanted = "Name:       web-1\nNamespace:  rack\nSpec:\n  Bmc:\n    Address:  ipmi://x\n    Verify:   true\nEvents:       <none>\n";
        assert_eq!(align(text, 2), wanted);
        assert_eq!(align("a\tb\tc\nlonger\tx\ty\n", 2), "a       b  c\nlonger  x  y\n");
    }

    #[test]
    fn later_rows_keep_the_width_of_earlier_ones() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let mut rows = AlignedRows::default();
        assert_eq!(
            rows.lines(&[row(["NAME", "AGE"]), row(["a-long-name", "5s"])]),
            "NAME          AGE\na-long-name   5s\n"
        );
        assert_eq!(rows.lines(&[row(["b", "1s"])]), "b             1s\n");
        assert_eq!(AlignedRows::default().lines(&[row(["A", ""])]), "A     \n");
        assert_eq!(AlignedRows::default().lines(&[row(["A\u{1b}[2J\n", "b"])]), "A^[[2J   b\n");
    }
}
