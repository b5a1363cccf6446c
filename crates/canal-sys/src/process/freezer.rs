//! Frozen cgroups.

use std::fs;

/// Whether the process's cgroup is frozen: `frozen 1` in `cgroup.events` (cgroup v2, Linux 5.2), or
/// `FROZEN` in `freezer.state` (v1). False if the cgroups are not mounted in the usual places, or
/// if the process's cgroup is outside our cgroup namespace.
pub(super) fn is_frozen(pid: u32) -> bool {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    cgroups.lines().any(|line| candidates(line).iter().any(|(path, mark)| has_line(path, mark)))
}

fn has_line(path: &str, mark: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line == mark))
}

/// The files that show the state for one line of `/proc/PID/cgroup` (`ID:CONTROLLERS:PATH`), each
/// with the line that it contains if the cgroup is frozen.
fn candidates(line: &str) -> Vec<(String, &'static str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    // Outside our cgroup namespace: the path would lead to the files of another cgroup.
    if path.split('/').any(|part| part == "..") {
        return Vec::new();
    }
    if controllers.is_empty() {
        // Version 2, mounted alone or next to the controllers of v1.
        let files = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        return files.map(|mount| (format!("{mount}{path}/cgroup.events"), "frozen 1")).into();
    }
    if controllers.split(',').any(|controller| controller == "freezer") {
        return vec![(format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN")];
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_cgroup_has_its_file() {
        let paths = |line| candidates(line).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(
            paths("0::/user.slice/a:b"),
            [
                "/sys/fs/cgroup/user.slice/a:b/cgroup.events",
                "/sys/fs/cgroup/unified/user.slice/a:b/cgroup.events"
            ]
        );
        assert_eq!(paths("5:freezer:/x"), ["/sys/fs/cgroup/freezer/x/freezer.state"]);
        assert!(paths("3:cpu,cpuacct:/x").is_empty());
        assert!(paths("0::/../elsewhere").is_empty());
        assert!(paths("junk").is_empty());
    }
}
