//! Draws the model. All text goes through [`sanitize`], so that foreign text cannot control the
//! terminal.

use itertools::Itertools as _;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use unicode_truncate::UnicodeTruncateStr;

use super::feed::{Answer, Ask};
use super::model::{Above, Bottom, Model, ORDERS, held_since, waits_since};
use super::timeline::timeline;
use crate::cli::commands::history::records;
use crate::cli::commands::status::render;
use crate::cli::commands::status::scope::Scope;
use crate::cli::commands::status::waits;
use crate::cli::output::columns::{GAP, KEY, Line, NOTE, PLAIN, Page, WARNING};
use crate::cli::output::sanitize::{fold, width};
use crate::cli::{Now, command_line, cut, plural, sanitize, user_name};
use crate::protocol::{HolderInfo, KeyInfo, Mode};

/// The most lines of a question.
const BOTTOM_LINES_MAX: usize = 4;

/// With fewer columns, the list has no column for commands.
const COMMANDS_FROM: usize = 72;

/// The keyboard help of the list.
const KEYS_OF_LIST: &str =
    "? help  q quit  Enter open  / filter  s sort  h history  p pause  z size";

/// The keyboard help of the page of a key.
const KEYS_OF_KEY: &str =
    "? help  q quit  Esc back  w chain  h history  r release  x kill  p pause  z size";

/// The keyboard help of a page above another one.
const KEYS_ABOVE: &str = "Esc back  q quit  arrows scroll";

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

/// Draws the model. Returns the position of the cursor, too, if the user is typing. Stores in the
/// model how far a page is scrolled, because only this function knows the limits.
pub(super) fn draw(model: &mut Model, area: Rect, now: &Now) -> (Buffer, Option<(u16, u16)>) {
    let (columns, height) = (usize::from(area.width), usize::from(area.height));
    let (bottom, cursor) = bottom(model, columns);
    let bottom_at = height.saturating_sub(bottom.len());
    let mut fixed = head(model, columns, now);
    // Leaves room for some of the page, however much there is to show above it.
    fixed.truncate(bottom_at.saturating_sub(2));
    let mut moving = body(model, columns, now);
    // The names of the columns, above the first group, do not scroll.
    let names = moving.iter().position(|line| line.group.is_some()).unwrap_or(0);
    fixed.extend(moving.drain(..names));
    fixed.truncate(bottom_at);
    let room = bottom_at - fixed.len();
    let marked = if model.above.is_none() { model.mark() } else { None };
    let of_mark = |line: &Line| marked.is_some() && line.group == marked;
    model.top = top(&moving, model.top, of_mark, room);
    // For terminals without reverse video.
    if let Some(first) = moving.iter_mut().find(|line| of_mark(line))
        && first.text.starts_with(' ')
    {
        first.text.replace_range(..1, ">");
    }
    let mut buffer = Buffer::empty(area);
    let page = fixed.iter().chain(moving.iter().skip(model.top).take(room));
    let lines = (0..).zip(page).chain((bottom_at..).zip(&bottom));
    for (y, line) in lines.filter(|(y, _)| *y < height) {
        let (y, mut style) = (place(y), Style::from(line.style));
        if of_mark(line) {
            style = style.add_modifier(Modifier::REVERSED);
            buffer.set_style(Rect::new(0, y, area.width, 1), style);
        }
        buffer.set_stringn(0, y, sanitize(&line.text), columns, style);
    }
    (buffer, cursor.map(|x| (place(x.min(columns.saturating_sub(1))), area.height - 1)))
}

/// The first visible line, chosen so that the marked group is visible too.
fn top(lines: &[Line], top: usize, of_mark: impl Fn(&Line) -> bool, room: usize) -> usize {
    let top = top.min(lines.len().saturating_sub(room));
    let Some(first) = lines.iter().position(&of_mark) else { return top };
    let last = lines.iter().rposition(of_mark).unwrap_or(first);
    // If the group is too long, its first line is more important than its last one.
    top.max((last + 1).saturating_sub(room)).min(first)
}

fn line(style: anstyle::Style, text: impl Into<String>) -> Line {
    Line { group: None, style, text: text.into() }
}

/// Converts a number of columns or lines to the type of the buffer.
fn place(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// The line while the answer of the daemon is on its way.
fn pending() -> Vec<Line> {
    vec![line(NOTE, "waiting for the daemon")]
}

/// The lines above every page.
fn head(model: &Model, columns: usize, now: &Now) -> Vec<Line> {
    let mut lines = Vec::new();
    let Some(status) = &model.status else {
        return vec![line(PLAIN, "waiting for the daemon")];
    };
    if model.is_lost {
        let lost = "the daemon has ended; waiting for the next one. Last known state:";
        lines.push(line(WARNING, lost));
    }
    lines.extend(render::cut_off(status, now).iter().flat_map(|page| page.lines(columns)));
    let mut page = Page::default();
    match (&model.above, &model.open) {
        (Some(Above::Help), _) => page.line("Keys", KEY),
        (Some(Above::Answer(Ask::Chain(target), _)), _) => {
            page.title(waits::shown(target), "chain of waits".to_owned(), KEY);
        }
        (Some(Above::Answer(Ask::History { key }, _)), _) => {
            page.title(sanitize(key), "over time".to_owned(), KEY);
        }
        (Some(Above::Answer(..)), _) => {}
        (None, Some(open)) => {
            let said = model.opened().map(render::summary).unwrap_or_default();
            page.title(sanitize(&open.key), said, KEY);
        }
        (None, None) => {
            let (counts, longest) = render::crowd(status, now);
            page.title(counts, longest, KEY);
            let mut order = ORDERS[model.order].0.to_owned();
            let filter = &model.filter;
            if !filter.is_empty() {
                order = format!("{} match `{}`, {order}", model.rows().len(), sanitize(filter));
            }
            page.line(order, NOTE);
            if status.left_out > 0 {
                let more = plural(status.left_out, "more key is", "more keys are");
                let under = "use --under PREFIX to show only some keys";
                page.line(format!("{more} left out; {under}"), WARNING);
            }
        }
    }
    lines.extend(page.lines(columns));
    lines
}

fn body(model: &Model, columns: usize, now: &Now) -> Vec<Line> {
    let Some(status) = &model.status else { return Vec::new() };
    let (lines, scope) = match (&model.above, &model.open) {
        (Some(above), _) => return body_above(model, above, columns, now),
        (None, Some(open)) => {
            let page = |key| render::participants(status, key, model.mark(), now);
            let lines = model.opened().map(|key| page(key).lines(columns));
            (lines.unwrap_or_default(), Scope::Key(&open.key))
        }
        (None, None) => (list(&model.rows(), columns, now), Scope::Overview),
    };
    if lines.iter().any(|line| line.group.is_some()) {
        return lines;
    }
    let text = match (scope, model.filter.is_empty()) {
        (Scope::Overview, false) => "no key matches; Esc lists all".to_owned(),
        _ => render::nothing(scope, model.is_part, render::cut_off(status, now).is_some()),
    };
    folded(&sanitize(&text), columns)
}

fn body_above(model: &Model, above: &Above, columns: usize, now: &Now) -> Vec<Line> {
    match above {
        Above::Help => {
            let room = columns.saturating_sub(8).max(10);
            let lines = |(key, text): &(&str, &str)| hanging(&format!("{key:<8}"), 8, text, room);
            HELP.iter().flat_map(lines).collect()
        }
        Above::Answer(ask, answer) => match (ask, answer.as_deref()) {
            (Ask::Chain(target), Some(Answer::Chain(found))) => {
                let text = waits::text(target, found, now);
                text.lines().flat_map(|text| folded(text, columns)).collect()
            }
            (Ask::History { key }, Some(Answer::History(found))) => {
                let page = records::page(&found.records, found.dropped, now);
                let rows = timeline(key, &found.records, model.key(key), columns, now);
                let timeline = rows.into_iter().map(|row| line(PLAIN, row));
                timeline.chain(page.lines(columns)).collect()
            }
            _ => pending(),
        },
    }
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

/// The list of keys, below the names of its columns.
fn list(keys: &[&KeyInfo], columns: usize, now: &Now) -> Vec<Line> {
    let mut page = Page::with(widths, 1..5);
    page.names(["KEY", "HELD", "WAIT", "LONGEST", "HELD FOR", "HOLDER"]);
    for key in keys {
        page.group();
        let style = match key {
            KeyInfo { paused: true, .. } => WARNING,
            key if key.holders.is_empty() && key.waiting == 0 => NOTE,
            _ => PLAIN,
        };
        page.cells(cells(key, now), style);
    }
    page.lines(columns)
}

/// Key, held, waiting, longest wait, longest hold, longest holder.
fn cells(key: &KeyInfo, now: &Now) -> [String; 6] {
    let age = |since: Option<&String>| since.map(|since| now.age(since)).unwrap_or_default();
    let name = sanitize(&key.key);
    let paused = key.paused.then(|| "paused".to_owned());
    let out = render::out_of_service(key).map(|numbers| format!("out: {numbers}"));
    let marks = paused.into_iter().chain(out).join(", ");
    [
        if marks.is_empty() { name } else { format!("{name} ({marks})") },
        held(key),
        if key.waiting > 0 { key.waiting.to_string() } else { String::new() },
        age(waits_since(key)),
        age(held_since(key)),
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
    let first = key.holders.iter().min_by_key(|holder| &holder.since);
    let shown = first.map(|HolderInfo { uid, command, .. }| {
        let command = command.as_deref().map(command_line).unwrap_or_default();
        format!("{}: {command}", user_name::name(*uid))
    });
    let more = key.holders.len().checked_sub(2).map(|n| format!(" (and {} more)", n + 1));
    shown.unwrap_or_default() + &more.unwrap_or_default()
}

/// The layout of the list.
fn widths(widest: [usize; 6], columns: usize) -> [Option<usize>; 6] {
    let mut widths = widest.map(Some);
    widths[5] = None;
    let taken = |widths: &[Option<usize>; 6]| -> usize {
        GAP.len() + widths[1..].iter().flatten().map(|it| it + GAP.len()).sum::<usize>()
    };
    if columns >= COMMANDS_FROM {
        let rest = columns.saturating_sub(taken(&widths) + GAP.len());
        let name = widest[0].min(rest / 2).max(8);
        (widths[0], widths[5]) = (Some(name), Some(rest.saturating_sub(name)));
        return widths;
    }
    // The name is the subject of the row.
    let name_least = widest[0].min(columns / 2).max(8);
    for column in [4, 3] {
        if name_least + taken(&widths) > columns {
            widths[column] = None;
        }
    }
    widths[0] = Some(columns.saturating_sub(taken(&widths)).max(8));
    widths
}

/// The lines at the bottom, and the column of the cursor in the last one, if the user is typing
/// there.
fn bottom(model: &Model, columns: usize) -> (Vec<Line>, Option<usize>) {
    let typed = |name: &str, text: &str| {
        let (name, text) = (sanitize(name), sanitize(text));
        // Shows the end of the text, where the user is typing.
        let room = columns.saturating_sub(width(&name) + 1);
        let shown = name + text.unicode_truncate_start(room).0;
        let cursor = Some(width(&shown));
        (vec![line(PLAIN, shown)], cursor)
    };
    let lines = match &model.bottom {
        Bottom::Filter => return typed("filter: ", &model.filter),
        Bottom::Size { key, typed: text } => {
            let name = cut(&sanitize(key), columns / 3);
            let hint = if columns < COMMANDS_FROM { "" } else { " (4, or 3x2; empty forgets it)" };
            return typed(&format!("size of {name}{hint}: "), text);
        }
        Bottom::Question(text, _) => sentences(&format!("{text} [y/N]"), columns, WARNING),
        Bottom::Said(text) => sentences(text, columns, PLAIN),
        Bottom::Asking => pending(),
        Bottom::Help => {
            let keys = match (&model.above, &model.open) {
                (Some(_), _) => KEYS_ABOVE,
                (None, Some(_)) => KEYS_OF_KEY,
                (None, None) => KEYS_OF_LIST,
            };
            vec![line(NOTE, as_many_as_fit(keys, columns))]
        }
    };
    (lines, None)
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

fn as_many_as_fit(keys: &str, columns: usize) -> String {
    let mut text = String::new();
    for key in keys.split(GAP) {
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
