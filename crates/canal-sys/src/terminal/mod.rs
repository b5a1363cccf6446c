//! Drawing on a terminal that other processes also use, or that accepts no output for a while.

pub mod drawn_line;
pub mod output;
pub mod shared;
