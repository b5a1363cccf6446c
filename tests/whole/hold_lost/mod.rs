//! `canal run` under a daemon over an engine: a hold that is lost while its command runs.
//!
//! The daemon is a fake in the test: it grants every request, with a deadline page, and ends no
//! command. So a test sees only the actions of the wrapper.

mod deadline_page;
mod ending;
mod messages;
mod starting;
