//! The messages: one file per subject, each message a plain type.
//!
//! Invariant: a new field is optional, and a reader ignores fields that it does not know.

mod acquire;
mod error;
mod history;
mod lease;
mod nodes;
mod operator;
mod status;

pub use acquire::*;
pub use error::*;
pub use history::*;
pub use lease::*;
pub use nodes::*;
pub use operator::*;
pub use status::*;
