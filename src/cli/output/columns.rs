//! A page of text: lines, and rows of columns that are as wide as they need to be.

use std::io::{self, IsTerminal};
use std::ops::Range;

use anstyle::{AnsiColor, Style};
use terminal_size::{Height, Width, terminal_size_of};

use crate::cli::output::sanitize::{fold, padded, width};
use crate::cli::{Result, cut, sanitize, stdout};

/// The number of columns of most pages. The last column takes the rest of the line.
pub(crate) const COLUMNS: usize = 7;

/// The largest width of a column on a terminal, except for the last one.
const WIDE: usize = 14;

/// The least width of the last column, even if the line becomes too long.
const LAST_AT_LEAST: usize = 10;

/// The columns that a narrow terminal omits, in this order.
const DISPENSABLE: [usize; 4] = [4, 2, 5, 3];

/// The width of a terminal of unknown size, and of a plot that is not on a terminal.
pub(crate) const COLUMNS_ASSUMED: usize = 80;

/// The space before each column.
pub(crate) const GAP: &str = "  ";

pub(crate) const PLAIN: Style = Style::new();
pub(crate) const KEY: Style = Style::new().bold();
pub(crate) const NOTE: Style = Style::new().dimmed();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default();

/// Chooses the width of each column, from the width of its widest cell and the columns of the
/// terminal; `None` leaves a column out. The last column counts as empty, and is not padded.
pub(crate) type Layout<const N: usize> = fn([usize; N], usize) -> [Option<usize>; N];

/// Rows, from top to bottom.
#[derive(Clone, Debug)]
pub(crate) struct Page<const N: usize = COLUMNS> {
    rows: Vec<(Row<N>, Style)>,
    /// The first row of each group. Rows before the first group belong to none.
    groups: Vec<usize>,
    layout: Layout<N>,
    /// The columns that are aligned to the right.
    right: Range<usize>,
}

impl Default for Page {
    fn default() -> Self {
        Self::with(table::<COLUMNS, COLUMNS>, 0..0)
    }
}

#[derive(Clone, Debug)]
enum Row<const N: usize> {
    /// A name of any length, and a text about it.
    Title(String, String),
    /// A sentence under a row, indented to its second column.
    Note(String),
    Cells(Box<[String; N]>),
}

/// A line of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The number of the line's group, if it belongs to one.
    pub(crate) group: Option<usize>,
    pub(crate) style: Style,
    pub(crate) text: String,
}

impl<const N: usize> Page<N> {
    /// A page with this layout, and with these columns aligned to the right.
    pub(crate) fn with(layout: Layout<N>, right: Range<usize>) -> Self {
        Self { rows: Vec::new(), groups: Vec::new(), layout, right }
    }

    /// Begins a group of rows.
    pub(crate) fn group(&mut self) {
        self.groups.push(self.rows.len());
    }

    /// Adds a name and a text about it. If the line is too long, the name is cut, or the text moves
    /// to the next line.
    pub(crate) fn title(&mut self, name: String, said: String, style: Style) {
        self.rows.push((Row::Title(name, said), style));
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, text: impl Into<String>, style: Style) {
        self.title(text.into(), String::new(), style);
    }

    /// Adds a sentence under a row, if there is one.
    pub(crate) fn note(&mut self, text: impl Into<Option<String>>, style: Style) {
        self.rows.extend(text.into().map(|text| (Row::Note(text), style)));
    }

    /// Adds the names of the columns.
    pub(crate) fn names(&mut self, names: [&str; N]) {
        self.cells(names.map(str::to_owned), NOTE);
    }

    /// Adds a row.
    pub(crate) fn cells(&mut self, cells: [String; N], style: Style) {
        self.rows.push((Row::Cells(Box::new(cells)), style));
    }

    /// The page as text, fitted to `columns`, or uncut if there are none.
    pub(crate) fn render(&self, columns: Option<usize>) -> String {
        styled(&self.lines(columns.unwrap_or(usize::MAX)))
    }

    /// The first lines of the page that fit into `room` lines. If some do not fit, the last line of
    /// the room contains what `left_out` returns about the number of groups of which no line is
    /// shown, and the number of other lines.
    pub(crate) fn fit(
        &self,
        columns: usize,
        room: usize,
        left_out: impl FnOnce(usize, usize) -> String,
    ) -> String {
        let mut lines = self.lines(columns);
        if lines.len() > room {
            let rest = lines.split_off(room.saturating_sub(1));
            let last = lines.last().and_then(|line| line.group);
            let is_cut = |line: &&Line| line.group.is_none() || line.group == last;
            let lines_cut = rest.iter().filter(is_cut).count();
            let groups = last.map_or(self.groups.len(), |last| self.groups.len() - 1 - last);
            let text = cut(&left_out(groups, lines_cut), columns);
            lines.push(Line { group: None, style: PLAIN, text });
        }
        styled(&lines)
    }

    /// The lines of the page, fitted to `columns`, or uncut with `usize::MAX`.
    pub(crate) fn lines(&self, columns: usize) -> Vec<Line> {
        let widths = (self.layout)(self.widest(), columns);
        let mut lines = Vec::new();
        for (at, (row, style)) in self.rows.iter().enumerate() {
            let group = self.groups.partition_point(|begin| *begin <= at).checked_sub(1);
            let texts = match row {
                Row::Title(name, said) => title(name, said, columns),
                Row::Note(text) => {
                    let indent = " ".repeat(GAP.len() * 2 + widths[0].unwrap_or(0));
                    let folded = fold(text, columns.saturating_sub(indent.len()));
                    folded.iter().map(|line| format!("{indent}{line}")).collect()
                }
                Row::Cells(cells) => vec![self.row(cells, &widths)],
            };
            for line in texts {
                // Cleaned in full, because a style from the daemon's text would look like one of
                // ours.
                let text = cut(&sanitize(line.trim_end()), columns);
                lines.push(Line { group, style: *style, text });
            }
        }
        lines
    }

    fn row(&self, cells: &[String; N], widths: &[Option<usize>; N]) -> String {
        let mut line = String::new();
        for (at, (cell, wide)) in cells.iter().zip(widths).enumerate() {
            let Some(wide) = *wide else { continue };
            let cell = cut(cell, wide);
            line += GAP;
            line += &match at {
                _ if self.right.contains(&at) => format!("{cell:>wide$}"),
                _ if at + 1 < N => padded(&cell, wide),
                _ => cell,
            };
        }
        line
    }

    /// The width of the widest cell of each column but the last.
    fn widest(&self) -> [usize; N] {
        let mut widest = [0; N];
        for (row, _) in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (widest, cell) in widest.iter_mut().zip(&cells[..N - 1]) {
                *widest = width(cell).max(*widest);
            }
        }
        widest
    }
}

/// The layout of most pages: a terminal cuts long cells, except in the column `WHOLE`, and omits
/// some columns.
pub(crate) fn table<const WHOLE: usize, const N: usize>(
    widest: [usize; N],
    columns: usize,
) -> [Option<usize>; N] {
    let is_cut = |at: usize| at != WHOLE && columns < usize::MAX;
    let wide = |at: usize| if is_cut(at) { widest[at].min(WIDE) } else { widest[at] };
    let mut widths = std::array::from_fn(|at| Some(wide(at)));
    let taken = |widths: &[Option<usize>]| {
        let each = widths[..N - 1].iter().flatten().map(|wide| GAP.len() + wide);
        each.sum::<usize>() + GAP.len()
    };
    for column in DISPENSABLE {
        if taken(&widths) + LAST_AT_LEAST <= columns {
            break;
        }
        widths[column] = None;
    }
    widths[N - 1] = Some(columns.saturating_sub(taken(&widths)).max(LAST_AT_LEAST));
    widths
}

/// The text of the lines, with their styles.
fn styled(lines: &[Line]) -> String {
    let styled = |line: &Line| {
        format!("{}{}{}\n", line.style.render(), line.text, line.style.render_reset())
    };
    lines.iter().map(styled).collect()
}

/// One line, if enough of the name fits into it.
fn title(name: &str, said: &str, columns: usize) -> Vec<String> {
    let room = columns.saturating_sub(width(said) + GAP.len());
    if width(name) > room && room < columns * 2 / 3 {
        return vec![cut(name, columns), format!("{GAP}{said}")];
    }
    vec![format!("{}{GAP}{said}", cut(name, room.max(LAST_AT_LEAST)))]
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    pub(crate) columns: usize,
    /// `None` if unknown.
    pub(crate) lines: Option<usize>,
}

impl Screen {
    /// The size of stdout, if it is a terminal.
    pub(crate) fn of_stdout() -> Option<Self> {
        let stdout = io::stdout();
        stdout.is_terminal().then(|| match terminal_size_of(&stdout) {
            Some((Width(columns), Height(lines))) if columns > 0 => {
                Self { columns: columns.into(), lines: Some(lines.into()) }
            }
            _ => Self { columns: COLUMNS_ASSUMED, lines: None },
        })
    }
}

/// Whether the terminal can move its cursor, as TERM says, so that text can replace earlier text.
pub(crate) fn can_move_cursor() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Prints a page as wide as the terminal, if stdout is one.
pub(crate) fn print<const N: usize>(page: &Page<N>) -> Result {
    let columns = Screen::of_stdout().map(|screen| screen.columns);
    stdout::print_styled(&page.render(columns)).map(drop)
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
    fn a_text_of_others_controls_no_terminal() {
        let mut page = Page::default();
        page.line("\x1b]0;x\x07\x1b[2J\u{9b}1m\x1b[1ma", KEY);
        let clean = "?]0;x??[2J?1m?[1ma";
        assert_eq!(page.render(None), format!("{}{clean}{}\n", KEY.render(), KEY.render_reset()));
    }

    #[test]
    fn a_narrow_terminal_does_without_some_columns() {
        let mut page = Page::default();
        page.cells(cells(["holds", "812", "root", "3m12s", "14:02:11", "0", "make"]), Style::new());
        let line = |columns| page.render(Some(columns));
        assert_eq!(line(50), "  holds  812  root  3m12s  14:02:11  0  make\n");
        assert_eq!(line(49), "  holds  812  root  3m12s  0  make\n");
        assert_eq!(line(40), "  holds  812  root  3m12s  0  make\n");
        assert_eq!(line(39), "  holds  812  3m12s  0  make\n");
        assert_eq!(line(20), "  holds  812  make\n");
        assert_eq!(line(10), "  holds  …\n");
    }

    #[test]
    fn what_does_not_fit_is_counted_by_group() {
        let mut page = Page::default();
        page.title("head".to_owned(), String::new(), Style::new());
        for name in ["a", "b", "c"] {
            page.group();
            page.title(name.to_owned(), String::new(), Style::new());
            page.note("one".to_owned(), Style::new());
        }
        let fit = |room| {
            let mut counted = None;
            let text = page.fit(40, room, |groups, lines| {
                counted = Some((groups, lines));
                "more".to_owned()
            });
            assert!(text.lines().count() <= room, "{text}");
            counted
        };
        assert_eq!(fit(7), None);
        assert_eq!(fit(6), Some((1, 0)));
        assert_eq!(fit(5), Some((1, 1)));
        assert_eq!(fit(4), Some((2, 0)));
        assert_eq!(fit(2), Some((3, 0)));
        assert_eq!(fit(1), Some((3, 1)));
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

    #[test]
    fn where_little_of_the_name_would_be_left_the_text_has_a_line_of_its_own() {
        let mut page = Page::default();
        page.title("team/project/job".to_owned(), "slots, 1 of 1 held".to_owned(), Style::new());
        assert_eq!(page.render(Some(36)), "team/project/job  slots, 1 of 1 held\n");
        assert_eq!(page.render(Some(35)), "team/project/job\n  slots, 1 of 1 held\n");
        assert_eq!(page.render(Some(12)), "team/projec…\n  slots, 1 …\n");
    }
}
