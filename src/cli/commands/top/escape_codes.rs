//! Computes the output that changes the content of a terminal.

use std::fmt::Write as _;

use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::style::{Color, Modifier};

/// Clears the screen.
pub(super) const CLEAR: &str = "\x1b[0m\x1b[2J";

/// The styles that the terminal and its user want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Palette {
    Colours,
    /// Bold, faint and reverse only.
    Plain,
}

/// The output that turns the screen `before` into the screen `next`, with the cursor where the user
/// types. Empty if the two are equal.
pub(super) fn changes(
    before: &Buffer,
    next: &Buffer,
    cursor: Option<(u16, u16)>,
    palette: Palette,
) -> String {
    let mut text = String::new();
    let mut behind = None;
    let mut style = String::new();
    for (x, y, cell) in before.diff(next) {
        if behind != Some((x, y)) {
            // Numbers of lines and columns begin at 1.
            let _ = write!(text, "\x1b[{};{}H", y + 1, x + 1);
        }
        let wanted = style_of(cell, palette);
        if wanted != style {
            let _ = write!(text, "\x1b[0{wanted}m");
            style = wanted;
        }
        text.push_str(cell.symbol());
        // After a wide character, the output moves the cursor explicitly, because terminals differ
        // in widths.
        behind = cell.symbol().is_ascii().then_some((x + 1, y));
    }
    if !style.is_empty() {
        text.push_str("\x1b[0m");
    }
    match cursor {
        Some((x, y)) => {
            let _ = write!(text, "\x1b[{};{}H\x1b[?25h", y + 1, x + 1);
        }
        None if !text.is_empty() => text.push_str("\x1b[?25l"),
        None => {}
    }
    text
}

/// The parameters of SGR after the 0.
fn style_of(cell: &Cell, palette: Palette) -> String {
    let mut style = String::new();
    for (modifier, number) in
        [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")]
    {
        if cell.modifier.contains(modifier) {
            style.push_str(number);
        }
    }
    if palette == Palette::Colours && cell.fg == Color::Yellow {
        style.push_str(";33");
    }
    style
}

#[cfg(test)]
mod tests {
    use ratatui_core::layout::Rect;
    use ratatui_core::style::Style;

    use super::*;

    fn buffer(lines: [&str; 2], style: Style) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 2));
        for (y, line) in (0..).zip(lines) {
            buffer.set_string(0, y, line, style);
        }
        buffer
    }

    #[test]
    fn only_what_differs_is_written() {
        let before = buffer(["a 12s", "b"], Style::new());
        let next = buffer(["a 13s", "b"], Style::new());
        assert_eq!(changes(&before, &before, None, Palette::Plain), "");
        assert_eq!(changes(&before, &next, None, Palette::Plain), "\x1b[1;4H3\x1b[?25l");
        let typed = changes(&before, &before, Some((2, 1)), Palette::Plain);
        assert_eq!(typed, "\x1b[2;3H\x1b[?25h");
    }

    #[test]
    fn a_terminal_ends_up_with_what_was_drawn() {
        let warning = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
        let before = buffer(["漢字 a", "zzz"], Style::new());
        let next = buffer(["a漢字 b", "z漢"], warning);
        let mut terminal = vt100::Parser::new(2, 10, 0);
        for (from, to) in [(&Buffer::empty(before.area), &before), (&before, &next)] {
            terminal.process(changes(from, to, None, Palette::Colours).as_bytes());
        }
        assert_eq!(terminal.screen().contents(), "a漢字 b\nz漢");
        let cell = terminal.screen().cell(0, 0).unwrap();
        assert_eq!((cell.fgcolor(), cell.bold()), (vt100::Color::Idx(3), true));
    }

    #[test]
    fn without_colours_none_is_written() {
        let blank = Buffer::empty(Rect::new(0, 0, 10, 2));
        let next = buffer(["a", "b"], Style::new().fg(Color::Yellow).add_modifier(Modifier::DIM));
        assert!(changes(&blank, &next, None, Palette::Colours).contains("\x1b[0;2;33m"));
        let plain = changes(&blank, &next, None, Palette::Plain);
        assert!(plain.contains("\x1b[0;2m") && !plain.contains("33"), "{plain:?}");
    }
}
