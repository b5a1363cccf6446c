//! A page of text: lines, and rows of columns that are as wide as they need to be.

use anstyle::Style;

use crate::cli::output::sanitize::{cut, fold, width};

/// How many columns a row has; the last column takes the rest of the line.
pub(super) const COLUMNS: usize = 7;

/// No column but the last is wider than this on a terminal.
const WIDE: usize = 14;

/// The last column has at least this much, whatever becomes of the line.
const LAST_AT_LEAST: usize = 10;

const GAP: &str = "  ";

/// Rows, from top to bottom.
#[derive(Clone, Debug, Default)]
pub(super) struct Page(Vec<(Row, Style)>);

#[derive(Clone, Debug)]
enum Row {
    /// A name of any length, and text about it.
    Title(String, String),
    /// A sentence under a row, indented to its second column.
    Note(String),
    Cells(Box<[String; COLUMNS]>),
}

impl Page {
    /// Adds a name and text about it. If the line is too long, the name is cut.
    pub(super) fn title(&mut self, name: String, said: String, style: Style) {
        self.0.push((Row::Title(name, said), style));
    }

    /// Adds a sentence.
    pub(super) fn note(&mut self, text: String, style: Style) {
        self.0.push((Row::Note(text), style));
    }

    /// Adds a row.
    pub(super) fn cells(&mut self, cells: [String; COLUMNS], style: Style) {
        self.0.push((Row::Cells(Box::new(cells)), style));
    }

    /// The page as text, fitted to `columns`; nothing is cut without it.
    pub(super) fn render(&self, columns: Option<usize>) -> String {
        let widths = self.widths(columns);
        let mut text = String::new();
        for (row, style) in &self.0 {
            for line in row.lines(&widths, columns) {
                let (start, end) = (style.render(), style.render_reset());
                text += &format!("{start}{}{end}\n", line.trim_end());
            }
        }
        text
    }

    /// How wide each column but the last is.
    fn widths(&self, columns: Option<usize>) -> [usize; COLUMNS - 1] {
        let mut widths = [0; COLUMNS - 1];
        for (row, _) in &self.0 {
            let Row::Cells(cells) = row else { continue };
            for (widest, cell) in widths.iter_mut().zip(cells.iter()) {
                let most = if columns.is_some() { WIDE } else { usize::MAX };
                *widest = width(cell).min(most).max(*widest);
            }
        }
        widths
    }
}

impl Row {
    fn lines(&self, widths: &[usize], columns: Option<usize>) -> Vec<String> {
        match self {
            Self::Title(name, said) => {
                let room = columns.map(|columns| columns.saturating_sub(width(said) + GAP.len()));
                let name =
                    room.map_or_else(|| name.clone(), |room| cut(name, room.max(LAST_AT_LEAST)));
                vec![format!("{name}{GAP}{said}")]
            }
            Self::Note(text) => {
                let indent = " ".repeat(GAP.len() * 2 + widths[0]);
                let room =
                    columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent.len()));
                fold(text, room).iter().map(|line| format!("{indent}{line}")).collect()
            }
            Self::Cells(cells) => vec![row(cells, widths, columns)],
        }
    }
}

fn row(cells: &[String; COLUMNS], widths: &[usize], columns: Option<usize>) -> String {
    let mut line = String::new();
    for (cell, &wide) in cells.iter().zip(widths) {
        let cell = cut(cell, wide);
        let fill = wide - width(&cell);
        line += &format!("{GAP}{cell}{}", " ".repeat(fill));
    }
    line += GAP;
    let last = &cells[COLUMNS - 1];
    match columns {
        None => line + last,
        Some(columns) => {
            let room = columns.saturating_sub(width(&line)).max(LAST_AT_LEAST);
            line + &cut(last, room)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(texts: [&str; COLUMNS]) -> [String; COLUMNS] {
        texts.map(str::to_owned)
    }

    #[test]
    fn rows_line_up_and_the_last_column_is_cut() {
        let mut page = Page::default();
        page.cells(cells(["a", "1", "", "x", "x", "x", "a long command line"]), Style::new());
        page.note("first second".to_owned(), Style::new());
        page.cells(cells(["bbb", "22", "漢", "x", "x", "x", "short"]), Style::new());
        assert_eq!(
            page.render(None),
            "  a    1       x  x  x  a long command line\n       first second\n  bbb  22  漢  x  x  x  short\n"
        );
        assert_eq!(
            page.render(Some(36)),
            "  a    1       x  x  x  a long comm…\n       first second\n  bbb  22  漢  x  x  x  short\n"
        );
    }

    #[test]
    fn of_a_title_the_name_is_cut() {
        let mut page = Page::default();
        page.title("n".repeat(100), "2 of 3 held".to_owned(), Style::new());
        let line = page.render(Some(40));
        assert_eq!(width(line.trim_end()), 40);
        assert!(line.ends_with("…  2 of 3 held\n"));
        assert!(page.render(None).starts_with(&"n".repeat(100)));
    }
}
