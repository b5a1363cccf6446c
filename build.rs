//! How the program for glibc is linked: it has nothing to relocate and no unwinder to load when it
//! starts.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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
