//! The client of a call: what it may do, how much it may take, the process that will own its lock,
//! and the frame that encloses that process.

mod check_permissions;
mod check_quota;
mod find_owner;
mod nesting;

pub(super) use check_permissions::of_handle;
pub(super) use find_owner::checked;
