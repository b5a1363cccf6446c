//! How the program is linked, so that it starts fast.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    start_order();
    for_glibc();
}

/// Makes the linker lay the functions that a start executes side by side, in the static program
/// when it is optimized. `packaging/start-order` writes the list of them.
fn start_order() {
    let folder = var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let list = format!("{folder}/packaging/start-order.ld");
    println!("cargo::rerun-if-changed={list}");
    // The other linkers read no such list.
    let flags = var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if var("PROFILE").as_deref() == Ok("release")
        && var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("musl")
        && !["mold", "gold", "lld"].iter().any(|other| flags.contains(other))
    {
        println!("cargo::rustc-link-arg-bin=canal=-T{list}");
    }
}

/// The program for glibc has nothing to relocate and no unwinder to load when it starts.
fn for_glibc() {
    let is_glibc = var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux")
        && var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu");
    let is_static = var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|feature| feature == "crt-static"));
    if !is_glibc || is_static {
        return;
    }
    // A program at a fixed address has nothing to relocate when it starts. For the static build
    // `.cargo/config.toml` asks for that; here the flag would reach procedural macros too.
    println!("cargo::rustc-link-arg-bin=canal=-no-pie");
    // `.cargo/config.toml` does without this so that functions call each other without a table.
    println!("cargo::rustc-link-arg-bin=canal=-Wl,-z,now");
    // Loading gcc's unwinder as a shared library takes a tenth of a start. A compiler that does not
    // have it as an archive prints the name without a folder.
    let unwinder = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    let unwinder = unwinder.map(|found| String::from_utf8_lossy(&found.stdout).trim().to_owned());
    if let Some(path) = unwinder.ok().filter(|path| path.starts_with('/'))
        && var("HOST") == var("TARGET")
    {
        println!("cargo::rustc-link-arg-bin=canal=-Wl,--whole-archive,{path},--no-whole-archive");
    }
}
