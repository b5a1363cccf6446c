//! Draws the model. All text goes through [`sanitize`], so that foreign text cannot control the
//! terminal.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};

use super::key_list::Row;
use super::model::{Above, Bottom, Model};
use super::timeline::timeline;
use crate::cli::commands::history;
use crate::cli::commands::status::page::{HEAD, KEY, NOTE, PLAIN, WARNING};
use crate::cli::commands::status::page::{Line, Page};
use crate::cli::commands::status::scope::Scope;
use crate::cli::commands::status::view;
use crate::cli::commands::status::why;
use crate::cli::output::sanitize::{fold, padded, width};
use crate::cli::{Now, command_line, cut, plural, sanitize, user_name};
use crate::protocol::{KeyInfo, Mode, Status};

/// The most lines of a question.
const BOTTOM_LINES_MAX: usize = 4;

/// With fewer columns, the list has no column for commands.
const COMMANDS_FROM: usize = 72;

/// The keyboard help of the list.
const KEYS_OF_LIST: [&str; 8] =
    ["? help", "q quit", "Enter open", "/ filter", "s sort", "h history", "p pause", "z size"];

/// The keyboard help of the page of a key.
const KEYS_OF_KEY: [&str; 9] = [
    "? help",
    "q quit",
    "Esc back",
    "w chain",
    "h history",
    "r release",
    "x kill",
    "p pause",
    "z size",
];

/// The keyboard help of a page above another one.
const KEYS_ABOVE: [&str; 3] = ["Esc back", "q quit", "arrows scroll"];

/// The complete keyboard help.
const HELP: [(&str, &str); 15] = [
    ("j, k", "select or scroll; also arrows, Page Up, Page Down, Home, End"),
    ("Enter", "open the key; there, show the selected entry's chain of waits"),
    ("Esc", "go back; in the list, clear the filter"),
    ("/", "list only keys with this text in their name, users or commands"),
    ("s", "sort by waiters, longest wait, longest hold, name"),
    ("w", "show what the selected entry waits for, and what waits for it"),
    ("h", "show the key over time, and its ended commands"),
    ("r", "break the selected hold, like `canal release --force`"),
    ("x", "end the selected process, like `canal kill` (TERM)"),
    ("z", "store a size, like `canal resize`: 4, or 3x2 for buckets"),
    ("p", "pause or resume the key"),
    ("Ctrl-L", "redraw the screen"),
    ("Ctrl-Z", "suspend canal; `fg` resumes it"),
    ("q", "quit; also Ctrl-C"),
    ("y", "confirm r, x, z or p"),
];

/// The screen, and the position of the cursor if the user is typing.
pub(super) struct Drawn {
    pub(super) buffer: Buffer,
    pub(super) cursor: Option<(u16, u16)>,
}

/// Draws the model. Stores in it how far a page is scrolled, because only this function knows the
/// limits.
pub(super) fn draw(model: &mut Model, area: Rect, now: &Now) -> Drawn {
    let columns = usize::from(area.width);
    let bottom = bottom(model, columns);
    let head = head(model, columns, now);
    let room = usize::from(area.height).saturating_sub(bottom.lines.len());
    // Leaves room for some of the page, however much there is to show above it.
    let head: Vec<Line> = head.into_iter().take(room.saturating_sub(2)).collect();
    let room = room - head.len();
    let mut body = body(model, columns, now);
    let marked = if model.above.is_none() { model.mark() } else { None };
    mark_begins(&mut body.moving, marked);
    model.top = body.top(model.top, marked, room);
    let mut canvas = Canvas { buffer: Buffer::empty(area) };
    canvas.lines(0, &head);
    let begin = head.len() + canvas.lines(head.len(), &body.fixed[..body.fixed.len().min(room)]);
    for (y, line) in (begin..).zip(body.shown(model.top, room)) {
        let is_marked = marked.is_some() && line.group == marked;
        canvas.line(y, line, if is_marked { Modifier::REVERSED } else { Modifier::empty() });
    }
    let first = usize::from(area.height).saturating_sub(bottom.lines.len());
    canvas.lines(first, &bottom.lines);
    let cursor = bottom.cursor.map(|x| (place(x.min(columns.saturating_sub(1))), area.height - 1));
    Drawn { buffer: canvas.buffer, cursor }
}

fn line(style: anstyle::Style, text: impl Into<String>) -> Line {
    Line { group: None, style, text: text.into() }
}

/// Converts a number of columns or lines to the type of the buffer.
fn place(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

struct Canvas {
    buffer: Buffer,
}

impl Canvas {
    fn lines(&mut self, first: usize, lines: &[Line]) -> usize {
        for (y, line) in (first..).zip(lines) {
            self.line(y, line, Modifier::empty());
        }
        lines.len()
    }

    fn line(&mut self, y: usize, line: &Line, mark: Modifier) {
        let Rect { width: columns, height, .. } = self.buffer.area;
        if y >= usize::from(height) {
            return;
        }
        let (y, style) = (place(y), Style::from(line.style).add_modifier(mark));
        if !mark.is_empty() {
            self.buffer.set_style(Rect::new(0, y, columns, 1), style);
        }
        self.buffer.set_stringn(0, y, sanitize(&line.text), columns.into(), style);
    }
}

/// The lines of a page: fixed ones at its head, and others that scroll.
#[derive(Default)]
struct Body {
    fixed: Vec<Line>,
    moving: Vec<Line>,
}

impl Body {
    fn room(&self, room: usize) -> usize {
        room.saturating_sub(self.fixed.len())
    }

    /// The first visible line, chosen so that the marked group is visible too.
    fn top(&self, top: usize, marked: Option<usize>, room: usize) -> usize {
        let room = self.room(room);
        let most = self.moving.len().saturating_sub(room);
        let top = top.min(most);
        let of_mark = |line: &Line| marked.is_some() && line.group == marked;
        let Some(first) = self.moving.iter().position(of_mark) else { return top };
        let last = self.moving.iter().rposition(of_mark).unwrap_or(first);
        // If the group is too long, its first line is more important than its last one.
        top.max((last + 1).saturating_sub(room)).min(first)
    }

    fn shown(&self, top: usize, room: usize) -> impl Iterator<Item = &Line> {
        self.moving.iter().skip(top).take(self.room(room))
    }
}

/// The lines above every page.
fn head(model: &Model, columns: usize, now: &Now) -> Vec<Line> {
    let mut lines = Vec::new();
    let Some(status) = &model.status else {
        return vec![line(PLAIN, "waiting for the daemon")];
    };
    if model.is_lost {
        lines.push(line(
            WARNING,
            "the daemon has ended; waiting for the next one. Last known state:",
        ));
    }
    if let Some(page) = view::cut_off(status, now) {
        lines.extend(page.unstyled_lines(Some(columns)));
    }
    let mut page = Page::default();
    match (&model.above, &model.open) {
        (Some(Above::Help), _) => page.line("Keys", KEY),
        (Some(Above::Chain(target, _)), _) => {
            page.title(target.to_string(), "chain of waits".to_owned(), KEY);
        }
        (Some(Above::History(key, _)), _) => {
            page.title(sanitize(key), "over time".to_owned(), KEY);
        }
        (None, Some(open)) => {
            let said = model.opened().map(view::summary).unwrap_or_default();
            page.title(sanitize(&open.key), said, KEY);
        }
        (None, None) => head_of_list(&mut page, model, status, now),
    }
    lines.extend(page.unstyled_lines(Some(columns)));
    lines
}

fn head_of_list(page: &mut Page, model: &Model, status: &Status, now: &Now) {
    let (counts, longest) = view::crowd(status, now);
    page.title(counts, longest, KEY);
    let mut order = model.choice.order.name().to_owned();
    let filter = &model.choice.filter;
    if !filter.is_empty() {
        order = format!("{} match `{}`, {order}", model.rows().len(), sanitize(filter));
    }
    page.line(order, NOTE);
    if status.left_out > 0 {
        let more = plural(status.left_out, "more key is", "more keys are");
        page.line(format!("{more} left out; use --under PREFIX to show only some keys"), WARNING);
    }
}

fn body(model: &Model, columns: usize, now: &Now) -> Body {
    match (&model.above, &model.status) {
        (_, None) => Body::default(),
        (Some(above), _) => {
            Body { fixed: Vec::new(), moving: body_above(model, above, columns, now) }
        }
        (None, Some(status)) if model.open.is_some() => body_of_key(model, status, columns, now),
        (None, Some(status)) => match model.rows() {
            rows if rows.is_empty() => nothing(model, status, Scope::Overview, columns, now),
            rows => list(&rows, columns, now),
        },
    }
}

fn body_above(model: &Model, above: &Above, columns: usize, now: &Now) -> Vec<Line> {
    let waits = || vec![line(NOTE, "waiting for the daemon")];
    match above {
        Above::Help => HELP.iter().flat_map(|(key, text)| help(key, text, columns)).collect(),
        Above::Chain(_, None) | Above::History(_, None) => waits(),
        Above::Chain(target, Some(found)) => {
            let text = why::text(target, found, now);
            text.lines().flat_map(|text| folded(text, columns)).collect()
        }
        Above::History(key, Some(found)) => {
            let page = history::page::page(&found.records, found.dropped, now);
            let rows = timeline(key, &found.records, model.key(key), columns, now);
            let timeline = rows.into_iter().map(|row| line(PLAIN, row));
            timeline.chain(page.unstyled_lines(Some(columns))).collect()
        }
    }
}

fn help(key: &str, text: &str, columns: usize) -> Vec<Line> {
    hanging(&format!("{key:<8}"), 8, text, columns.saturating_sub(8).max(10))
}

/// A line of a chain. Its continuation lines have the same indentation.
fn folded(text: &str, columns: usize) -> Vec<Line> {
    let depth = (text.len() - text.trim_start().len()).min(columns / 2);
    let room = columns.saturating_sub(depth + 2);
    hanging(&" ".repeat(depth), depth + 2, text.trim_start(), room)
}

/// A text behind `first`. Its continuation lines are indented.
fn hanging(first: &str, indent: usize, text: &str, room: usize) -> Vec<Line> {
    let lead = std::iter::once(first.to_owned()).chain(std::iter::repeat(" ".repeat(indent)));
    fold(text, room).iter().zip(lead).map(|(text, lead)| line(PLAIN, lead + text)).collect()
}

fn body_of_key(model: &Model, status: &Status, columns: usize, now: &Now) -> Body {
    let selected = model.mark();
    let page = model.opened().map(|key| view::participants(status, key, selected, now));
    let mut fixed = page.map(|page| page.unstyled_lines(Some(columns))).unwrap_or_default();
    if fixed.is_empty() {
        let key = model.open.as_ref().map(|open| sanitize(&open.key)).unwrap_or_default();
        return nothing(model, status, Scope::Key(&key), columns, now);
    }
    let head = fixed.iter().take_while(|line| line.group.is_none()).count();
    let moving = fixed.split_off(head);
    Body { fixed, moving }
}

/// The message if there is nothing to show.
fn nothing(model: &Model, status: &Status, scope: Scope<'_>, columns: usize, now: &Now) -> Body {
    let text = match (scope, model.choice.filter.is_empty()) {
        (Scope::Overview, false) => "no key matches; Esc lists all".to_owned(),
        _ => view::nothing(scope, model.is_part, view::cut_off(status, now).is_some()),
    };
    Body { fixed: Vec::new(), moving: folded(&text, columns) }
}

/// Puts the mark before the first line of a group, for terminals without reverse video.
fn mark_begins(lines: &mut [Line], marked: Option<usize>) {
    let of_mark = |line: &&mut Line| marked.is_some() && line.group == marked;
    if let Some(first) = lines.iter_mut().find(of_mark)
        && first.text.starts_with(' ')
    {
        first.text.replace_range(..1, ">");
    }
}

/// The list of keys.
fn list(rows: &[Row<'_>], columns: usize, now: &Now) -> Body {
    let cells: Vec<[String; 6]> = rows.iter().map(|row| cells(row, now)).collect();
    let names = ["KEY", "HELD", "WAIT", "LONGEST", "HELD FOR", "HOLDER"].map(str::to_owned);
    let widths = widths(&names, &cells, columns);
    let fixed = vec![line(HEAD, row_text(&names, &widths))];
    let moving = rows.iter().zip(&cells).enumerate().map(|(at, (row, cells))| {
        let style = match row.key {
            KeyInfo { paused: true, .. } => WARNING,
            key if key.holders.is_empty() && key.waiting == 0 => NOTE,
            _ => PLAIN,
        };
        Line { group: Some(at), style, text: row_text(cells, &widths) }
    });
    Body { fixed, moving: moving.collect() }
}

/// Key, held, waiting, longest wait, longest hold, longest holder.
fn cells(row: &Row<'_>, now: &Now) -> [String; 6] {
    let Row { key, waits_since, held_since } = row;
    let age = |since: &Option<&str>| since.map(|since| now.age(since)).unwrap_or_default();
    let name = sanitize(&key.key);
    let paused = key.paused.then(|| "paused".to_owned());
    let out = view::out_of_service(key).map(|numbers| format!("out: {numbers}"));
    let marks: Vec<String> = paused.into_iter().chain(out).collect();
    [
        if marks.is_empty() { name } else { format!("{name} ({})", marks.join(", ")) },
        held(key),
        if key.waiting > 0 { key.waiting.to_string() } else { String::new() },
        age(waits_since),
        age(held_since),
        holder(key),
    ]
}

/// `2/3`, `4 read`, `write`.
fn held(key: &KeyInfo) -> String {
    let of_mode = |mode| key.holders.iter().filter(|it| it.mode == Some(mode)).count();
    match (of_mode(Mode::Read), of_mode(Mode::Write), key.capacity) {
        (0, 0, Some(capacity)) => format!("{}/{capacity}", key.held),
        (0, 0, None) if key.held == 0 => String::new(),
        (0, 0, None) => key.held.to_string(),
        (_, 1.., _) => "write".to_owned(),
        (readers, 0, _) => format!("{readers} read"),
    }
}

/// The longest holder: `alice: ./deploy.sh, and 2 more`.
fn holder(key: &KeyInfo) -> String {
    let Some(first) = key.holders.iter().min_by_key(|holder| &holder.since) else {
        return String::new();
    };
    let command = first.command.as_deref().map(command_line).unwrap_or_default();
    let more = match key.holders.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    format!("{}: {command}{more}", user_name::name(first.uid))
}

/// The width of each column; 0 if there is no room for it.
fn widths(names: &[String; 6], cells: &[[String; 6]], columns: usize) -> [usize; 6] {
    let mut widths = [0; 6];
    for row in std::iter::once(names).chain(cells) {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).max(*widest);
        }
    }
    if columns < COMMANDS_FROM {
        widths[5] = 0;
    }
    let taken = |widths: &[usize; 6], from: usize| -> usize {
        widths[from..].iter().filter(|wide| **wide > 0).map(|wide| wide + GAP.len()).sum()
    };
    // The name is the subject of the row.
    let name_least = widths[0].min(columns / 2).max(8);
    if widths[5] > 0 {
        let fixed = taken(&[0, widths[1], widths[2], widths[3], widths[4], 0], 1);
        let rest = columns.saturating_sub(MARK + fixed + GAP.len());
        widths[0] = widths[0].min(rest / 2).max(8);
        widths[5] = rest.saturating_sub(widths[0]);
        return widths;
    }
    for column in [4, 3] {
        if MARK + name_least + taken(&widths, 1) > columns {
            widths[column] = 0;
        }
    }
    widths[0] = columns.saturating_sub(MARK + taken(&widths, 1)).max(8);
    widths
}

const GAP: &str = "  ";
/// The columns of the mark.
const MARK: usize = 2;

/// The name and the holder are left-aligned; numbers and times are right-aligned.
fn row_text(cells: &[String; 6], widths: &[usize; 6]) -> String {
    let mut text = " ".repeat(MARK);
    let shown = cells.iter().zip(*widths).enumerate().filter(|(_, (_, wide))| *wide > 0);
    for (at, (cell, wide)) in shown {
        let cell = cut(cell, wide);
        text += &match at {
            0 => padded(&cell, wide),
            5 => format!("{GAP}{cell}"),
            _ => format!("{GAP}{cell:>wide$}"),
        };
    }
    text
}

/// The lines at the bottom.
struct Foot {
    lines: Vec<Line>,
    /// The column of the cursor in the last line, if the user is typing there.
    cursor: Option<usize>,
}

fn bottom(model: &Model, columns: usize) -> Foot {
    let typed = |name: &str, text: &str| {
        let (name, text) = (sanitize(name), sanitize(text));
        // Shows the end of the text, where the user is typing.
        let room = columns.saturating_sub(width(&name) + 1);
        let text = tail(&text, room);
        let shown = format!("{name}{text}");
        Foot { cursor: Some(width(&shown)), lines: vec![line(PLAIN, shown)] }
    };
    let lines = match &model.bottom {
        Bottom::Filter => return typed("filter: ", &model.choice.filter),
        Bottom::Size { key, typed: text } => {
            let name = cut(&sanitize(key), columns / 3);
            let hint = if columns < COMMANDS_FROM { "" } else { " (4, or 3x2; empty forgets it)" };
            return typed(&format!("size of {name}{hint}: "), text);
        }
        Bottom::Question(text, _) => sentences(&format!("{text} [y/N]"), columns, WARNING),
        Bottom::Said(text) => sentences(text, columns, PLAIN),
        Bottom::Asking => vec![line(NOTE, "waiting for the daemon")],
        Bottom::Help => {
            let keys: &[&str] = match (&model.above, &model.open) {
                (Some(_), _) => &KEYS_ABOVE,
                (None, Some(_)) => &KEYS_OF_KEY,
                (None, None) => &KEYS_OF_LIST,
            };
            vec![line(NOTE, as_many_as_fit(keys, columns))]
        }
    };
    Foot { lines, cursor: None }
}

/// The end of a text, in at most this many columns.
fn tail(text: &str, columns: usize) -> &str {
    let mut text = text;
    while width(text) > columns {
        let Some(first) = text.chars().next() else { break };
        text = &text[first.len_utf8()..];
    }
    text
}

/// A sentence in several lines. If it is too long, only its beginning and its end.
fn sentences(text: &str, columns: usize, style: anstyle::Style) -> Vec<Line> {
    let mut lines = fold(&sanitize(text), columns);
    if lines.len() > BOTTOM_LINES_MAX {
        let last = lines.split_off(lines.len() - 1);
        lines.truncate(BOTTOM_LINES_MAX - 2);
        lines.push("…".to_owned());
        lines.extend(last);
    }
    lines.into_iter().map(|text| line(style, text)).collect()
}

fn as_many_as_fit(keys: &[&str], columns: usize) -> String {
    let mut text = String::new();
    for key in keys {
        let gap = if text.is_empty() { "" } else { GAP };
        if width(&text) + gap.len() + width(key) <= columns {
            text += gap;
            text += key;
        }
    }
    text
}

#[cfg(test)]
mod tests;
