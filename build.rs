//! Links the program at a fixed address: it has nothing to relocate when it starts then, which is a
//! third of the page faults of a `canal run`. The static build asks for that in `.cargo/config.toml`,
//! which for this machine's own target would reach build scripts and procedural macros too.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |name: &str| std::env::var(name).unwrap_or_default();
    if target("CARGO_CFG_TARGET_OS") == "linux" && target("CARGO_CFG_TARGET_ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bin=canal=-no-pie");
    }
}
