//! How a client finds a daemon, and the rights of other users there. These tests do not run over an
//! engine.

mod history;
mod hooks;
mod machine;
mod metrics;
mod other_user;
mod permissions;
mod places;
mod preloaded;
mod separation;
mod without_systemd;
