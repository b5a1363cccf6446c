//! Drawing on a terminal that other processes use too.

pub mod drawn_line;
pub mod shared;
