//! How the program is linked.
//!
//! A program at a fixed address has nothing to relocate when it starts; relocating was a third of the
//! page faults of a `canal run`. For the static build `.cargo/config.toml` asks for that. For this
//! machine's own target the flag there would reach build scripts and procedural macros too.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_glibc = var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux")
        && var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu");
    // A static program of glibc's relocates itself. Linked as if it need not, it crashes at its start.
    let is_static = var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|feature| feature == "crt-static"));
    if is_glibc && !is_static {
        println!("cargo::rustc-link-arg-bin=canal=-no-pie");
    }
}
