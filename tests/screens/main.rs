//! Screens while canal waits: real terminals of several sizes, and the page that keeps their
//! content, `docs/screens.md`. `UPDATE=1 cargo test --test screens` rewrites the page.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../fixtures/world/no_engine.rs"]
mod backend;
#[path = "../fixtures/isolation.rs"]
mod isolation;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../fixtures/terminal.rs"]
mod terminal;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../fixtures/world/mod.rs"]
mod world;

mod page;
mod screen;
mod sharing;
mod top;
