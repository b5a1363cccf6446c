//! Processes: reads /proc, forks children, and executes programs.
//!
//! A pid names a process only briefly. A value that was read by pid is for display, or is checked
//! against a [`Pidfd`](crate::pidfd::Pidfd) as [`find`] does.

mod ancestry;
pub mod child;
pub mod detach;
mod details;
pub mod exec;
pub mod find_command;
mod identity;
pub mod startup;
mod state;
pub mod user;

pub use ancestry::{add_descendants, add_orphans_of_group, all, ancestors, visible};
pub use details::{
    COMMAND_LINE_MAX, OwnProgram, command_line, file_of, first_words, folder, has_named, has_open,
    is_link_to, name, path_of, variable, writers_of,
};
pub use identity::{FIRST_PID_NAMESPACE, Found, Origin, find, identity};
pub use state::{
    Activity, RunState, Stat, activity, parent, run_state, started, state_letter, zombie_status,
};
pub use user::{become_user, may_look_into_others, uid_of};

#[cfg(test)]
mod tests;
