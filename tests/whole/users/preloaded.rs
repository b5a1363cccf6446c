//! A preloaded library that reports that everyone is root and owns every file, as fakeroot(1) does.

use crate::namespace::privately;
use crate::world::World;
use crate::world::process::installed_or_skip;

/// The source of such a library. It replaces these functions in every C library.
const LIBRARY: &str = r"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

uid_t getuid(void) { return 0; }
uid_t geteuid(void) { return 0; }
gid_t getgid(void) { return 0; }
gid_t getegid(void) { return 0; }
int getgroups(int size, gid_t *list) { return 0; }

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define ROOTS(call) do { int result = call; if (!result) found->st_uid = found->st_gid = 0; return result; } while (0)
int stat(const char *path, struct stat *found) { REAL(stat); ROOTS(real(path, found)); }
int lstat(const char *path, struct stat *found) { REAL(lstat); ROOTS(real(path, found)); }
int fstat(int fd, struct stat *found) { REAL(fstat); ROOTS(real(fd, found)); }
int fstatat(int fd, const char *path, struct stat *found, int flags) {
    REAL(fstatat); ROOTS(real(fd, path, found, flags));
}
int statx(int fd, const char *path, int flags, unsigned mask, struct statx *found) {
    REAL(statx);
    int result = real(fd, path, flags, mask, found);
    if (!result) found->stx_uid = found->stx_gid = 0;
    return result;
}
";

/// Creates a user who runs commands with the library and without it. Skips the test without a C
/// compiler.
fn with_library(world: &World, script: &str) -> Option<String> {
    if !installed_or_skip("cc", "a preloaded library that names another user") {
        return None;
    }
    std::fs::write(world.path("work").join("fake.c"), LIBRARY).unwrap();
    let ended = world.program("cc", ["-shared", "-fPIC", "-o", "fake.so", "fake.c", "-ldl"]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let users = r#"
        cp /mnt/lasting/fake.so /mnt
        user() { setpriv --reuid 12345 --regid 12345 --clear-groups "$@"; }
        fake() { user env LD_PRELOAD=/mnt/fake.so "$@"; }
        cd /tmp
        [ "$(fake id -u)" = 0 ] && [ "$(fake stat -c %u /tmp/.)" = 0 ] || echo "the library does nothing"
    "#;
    Some(privately(world, &format!("{users}{script}"))?.stdout)
}

#[test]
fn a_preloaded_library_that_names_another_user_changes_neither_place_nor_lock() {
    let world = World::new();
    let script = r#"
        user canal run -k x -c 'touch held; sleep 600' 2>/dev/null &
        until_true test -e held
        fake canal run -n -k x -- true 2>/dev/null; echo "with the user's daemon: $?"
        user canal daemon --stop
        rm -rf /tmp/canal-12345
        fake canal run -k y -c 'touch held.y; sleep 600' 2>/dev/null &
        until_true test -e held.y
        user canal run -n -k y -- true 2>/dev/null; echo "with its own: $?"
        user canal daemon --stop
        fake canal daemon 2>/dev/null &
        until_true user canal status --no-start >/dev/null 2>&1
        fake canal status --no-start >/dev/null; echo "with one in the foreground: $?"
        stat -c '%n of %u' /tmp/canal-*
    "#;
    let Some(printed) = with_library(&world, script) else { return };
    let expected = "with the user's daemon: 75\nwith its own: 75\n\
                    with one in the foreground: 0\n/tmp/canal-12345 of 12345\n";
    assert_eq!(printed, expected);
}

#[test]
fn a_preloaded_library_that_owns_every_file_makes_no_strange_directory_trusted() {
    let world = World::new();
    let script = r#"
        mkdir -m 755 /tmp/canal-12345
        fake canal run -n -k x -- true 2>&1 | grep -o 'belongs to root, not to uid 12345'
    "#;
    let Some(printed) = with_library(&world, script) else { return };
    assert_eq!(printed, "belongs to root, not to uid 12345\n");
}
