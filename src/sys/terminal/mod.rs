//! Drawing on a terminal that other processes use too, or that takes nothing for a while.

pub mod audience;
pub mod drawn_line;
pub mod output;
pub mod shared;
