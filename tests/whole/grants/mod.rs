//! Tests which request is granted, and when.

mod buckets;
mod crowd;
mod key_text;
mod nested;
mod order;
mod overtaking;
mod resize;
mod stopped;
mod supersede;
mod writers;
