//! Screens while canal waits: real terminals of several sizes, and the page that keeps their
//! content, `docs/screens.md`. `UPDATE=1 cargo test --test whole screens::` rewrites the page.

mod page;
mod screen;
mod sharing;
mod top;
