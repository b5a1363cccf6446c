//! Screens while canal waits: real terminals of several sizes, and the page that keeps their
//! content, `docs/screens.md`. `UPDATE=1 cargo test --test runner screens::` rewrites the page.

mod page;
mod sharing;
mod top;
