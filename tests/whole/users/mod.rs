//! Where a daemon is found, and what other users may do there. These tests do not run over an engine.

mod history;
mod hooks;
mod machine;
mod metrics;
mod other_user;
mod permissions;
mod places;
mod preloaded;
mod separation;
