//! How the program is linked.
//!
//! At a fixed address it has nothing to relocate when it starts, which is a third of the page faults
//! of a `canal run`. The static build asks for that in `.cargo/config.toml`, which for this machine's
//! own target would reach build scripts and procedural macros too.
//!
//! What a `canal run` touches lies together (`src/start.txt`), which saves half of those that are left:
//! there is one for each 64 KiB, and not for nearly each function.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// What the C library runs from the start of a program to its end, as files of musl's.
const C_LIBRARY: &str = "\
    __environ __errno_location __init_tls __libc_start_main __set_thread_area __syscall_cp \
    access bcmp cancel connect default_attr defsysinfo execve fstatat getegid geteuid getgid \
    getrandom getuid libc lstat memcmp memcpy memmove memset mmap poll recvmsg send sendto \
    sigaction signal socket stat strlen syscall_cp syscall_ret";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/start.txt");
    let libc = variable("CARGO_CFG_TARGET_ENV");
    if variable("CARGO_CFG_TARGET_OS") != "linux" || !["gnu", "musl"].contains(&libc.as_str()) {
        return Ok(());
    }
    // A static program of glibc's relocates itself, unless it is built with `relocation-model=static`;
    // linked as if it need not, it crashes at its start.
    if libc == "gnu" && !is_static() {
        link("-no-pie");
    }
    if is_another_linker() {
        return Ok(());
    }
    let script = Path::new(&variable("OUT_DIR")).join("start.ld");
    fs::write(&script, together(&fs::read_to_string("src/start.txt")?))?;
    link(&format!("-T{}", script.display()));
    // One segment less, and one page: that of the file's header.
    link("-Wl,-z,noseparate-code");
    if let Some(unwinder) = unwinder() {
        link(&format!("-Wl,--whole-archive,{},--no-whole-archive", unwinder.display()));
    }
    Ok(())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

/// Whether the C library becomes part of the program (`-C target-feature=+crt-static`).
fn is_static() -> bool {
    variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static")
}

fn link(argument: &str) {
    println!("cargo::rustc-link-arg-bin=canal={argument}");
}

/// Whether somebody chose a linker, which may not know the scripts of GNU's and LLVM's.
fn is_another_linker() -> bool {
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    env::var_os("RUSTC_LINKER").is_some()
        || ["fuse-ld", "linker=", "mold", "wild"].iter().any(|word| flags.contains(word))
}

/// An addition to the linker's own script: what is listed comes first, and of what has no content in the
/// file that which is written at the start. (The kernel brings the page with the end of the data for
/// every program, to clear what is behind it.)
fn together(list: &str) -> String {
    let mut script = String::from("SECTIONS { .text.start : {\n*crt1.o(.text .text.*)\n");
    let mut cleared =
        String::from("SECTIONS { .bss.start (NOLOAD) : {\n*crtbegin.o(.bss .bss.*)\n");
    for file in C_LIBRARY.split_ascii_whitespace() {
        script += &format!("*libc.a:{file}.lo(.text .text.* .rodata .rodata.*)\n");
        cleared += &format!("*libc.a:{file}.lo(.bss .bss.* COMMON)\n");
    }
    script += "*crtbegin.o(.text .text.*)\n";
    for name in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        script += &format!("*(.text.{name} .text.unlikely.{name} .rodata.{name})\n");
        cleared += &format!("*(.bss.{name})\n");
    }
    script +=
        "*(.rodata.cst4 .rodata.cst8 .rodata.cst16 .rodata.cst32)\n} } INSERT BEFORE .text;\n";
    cleared += "} } INSERT BEFORE .bss;\n";
    script + &cleared
}

/// The unwinder of gcc as a static library: loading the shared one takes a tenth of a start.
fn unwinder() -> Option<PathBuf> {
    // In a static program Rust's library brings it, and twice it does not link.
    let is_native = variable("HOST") == variable("TARGET");
    if is_static() || variable("CARGO_CFG_TARGET_ENV") != "gnu" || !is_native {
        return None;
    }
    let said = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(said.stdout).ok()?.trim());
    // It says the mere name of what it does not find.
    path.is_absolute().then_some(path)
}
