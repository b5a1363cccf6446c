//! Tests which request is granted, and when.

mod crowd;
mod key_text;
mod nested;
mod order;
mod overtaking;
mod resize;
mod stopped;
mod writers;
