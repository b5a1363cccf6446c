//! The parts of `canal help` that are not in the definition of the options.

use std::fmt::Write as _;

use clap::Command;

/// The end of `canal help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes: the command's own; 75 not acquired; 122 lost; 124 --max-run exceeded;
125 canal failed; 126 and 127 the command cannot be executed, or was not found.";

/// The end of `canal run -h`.
pub(crate) const RUN_EXAMPLES: &str = "\
Examples:
  canal run -k deploy -- ./deploy.sh         one at a time
  canal run -n -E 0 -k sync -- ./sync.sh     from cron: skip if still running
  canal run -w 10m -k deploy -- ./deploy.sh  give up after ten minutes
  canal run -k gpu -j 4 -- ./train.sh        four at a time
  canal run -k db --per 3 --buckets 2 ./job  three on each of two backends";

/// The end of `canal submit -h`.
pub(crate) const SUBMIT_EXAMPLES: &str = "\
Examples:
  canal submit -k gpu -j 4 -- ./train.sh     prints the job's number
  canal log -f 17                            follow its output
  canal wait 17                              exit with its exit status";

/// The end of `canal acquire -h`.
pub(crate) const ACQUIRE_EXAMPLES: &str = "\
Examples:
  canal acquire nightly --pid $$ -n || exit  in a script: hold it until the script ends
  canal acquire --ttl 10m deploy             a lease, renewed with canal renew
  canal acquire --ttl 60s --on a,b,c deploy  a lease on several nodes";

/// The commands by purpose, each group under its heading.
pub(crate) const PURPOSES: &[(&str, &[&str])] = &[
    ("Run", &["run", "acquire", "renew", "release", "submit", "log", "wait"]),
    (
        "Inspect and control",
        &[
            "status", "top", "test", "leader", "history", "stats", "trace", "metrics", "kill",
            "priority", "resize",
        ],
    ),
    ("Operate", &["daemon", "bridge", "config", "doctor", "setup", "completions", "man"]),
];

/// The template of `canal help`, which groups these commands. clap can only print one list.
pub(crate) fn by_purpose(verbs: &Command) -> String {
    let mut text = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in PURPOSES {
        let _ = write!(text, "\n{heading}:\n");
        for name in *names {
            let verb = verbs.find_subcommand(name);
            let about = verb.and_then(Command::get_about).cloned().unwrap_or_default();
            let _ = writeln!(text, "  {name:<11}  {about}");
        }
    }
    text + "\n{options}{after-help}"
}
