//! What clients and the daemon say to each other.
//!
//! The convention is varlink's: JSON objects, each ended by a NUL byte, over a Unix stream socket.
//! `io.canal.Lock.varlink` beside this file is the interface; the types here are its Rust form.
//! New fields are optional, and unknown ones are ignored, so that an old client can talk to a new
//! daemon and the other way round.

mod error;
pub mod frame;
mod handle;
mod lease;
pub mod limits;
mod message;
mod page;
pub mod place;
pub mod service;
mod status;
pub mod user;
mod waits;

pub use crate::core::{Kind, Mode, OnLost, Tag};
pub use error::{ErrorName, Failure, OWNER_GONE};
pub use handle::Handle;
pub use lease::{LeaseAsked, LeaseShown, Lost, Renew, Renewed};
pub use message::*;
use page::is_kill;
pub use page::{PageFound, PageQuery, Wrapper};
pub use status::*;
pub use waits::*;

/// The interface description, as `org.varlink.service.GetInterfaceDescription` gives it.
pub const INTERFACE_DESCRIPTION: &str = include_str!("io.canal.Lock.varlink");

/// The variable that a command over an engine, and what it starts, has in its environment: the tags
/// of the holds that it runs under, with blanks between them. The daemon finds by it what is left of
/// a command when the hold is lost.
pub const HOLD_VARIABLE: &str = "CANAL_HOLD";

/// The name of the interface.
pub const INTERFACE: &str = "io.canal.Lock";
