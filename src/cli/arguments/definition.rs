//! The single definition of the command line, for parsing, help, man pages and completions.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Command, Parser, Subcommand, ValueEnum};
use nix::sys::signal::Signal;

use crate::cli::{Verbosity, user_name};
use crate::core::Key;
use crate::nodes::Require;
use crate::protocol::{OnLost, StatusQuery, WhyQuery, WireItem};

use super::keys_and_sizes::{LockArgs, plain_key, prefix, sized_key, slots_or_none};
use super::nodes::{NodesArgs, leader_require};
use super::note::NoteArgs;
use super::parse_value::{
    self, Length, job, number, on_lost, pid, positive, priority, signal, why,
};
use super::request::{HandleArgs, RequestArgs, SessionArgs};

/// Limit how many commands run at once, and show what is waiting and why
#[derive(Debug, Parser)]
#[command(
    name = "canal",
    version,
    max_term_width = 100,
    help_template = by_purpose(&Verb::augment_subcommands(clap::Command::new("canal"))),
    override_usage = "canal [OPTIONS] COMMAND",
    after_help = EXIT_CODES
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

/// The options of every command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Use the daemon at this socket
    /// [default: $CANAL_SOCKET, else /run/canal/canal.sock, else /tmp/canal-UID/canal.sock]
    #[arg(long, hide_short_help = true, value_name = "PATH", global = true, display_order = 900)]
    pub(crate) socket: Option<PathBuf>,
    /// Fail if no daemon is running, instead of starting one
    #[arg(long, hide_short_help = true, global = true, display_order = 901)]
    pub(crate) no_start: bool,
    /// Hide "waiting for …", "not acquired" and notes
    ///
    /// If given twice, hide all messages.
    #[arg(short, long, hide_short_help = true, global = true, display_order = 902, conflicts_with = "verbose", action = ArgAction::Count)]
    pub(crate) quiet: u8,
    /// Print more messages
    ///
    /// If given twice, also print each call to the daemon, and the daemon's log.
    #[arg(short, long, hide_short_help = true, global = true, display_order = 903, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl Global {
    /// How many messages to print.
    pub(crate) fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (2.., _) => Verbosity::Silent,
            (1, _) => Verbosity::Quiet,
            (0, 0) => Verbosity::Normal,
            (0, 1) => Verbosity::Verbose,
            (0, 2..) => Verbosity::Detailed,
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command under a lock
    Run(RunArgs),
    /// Run a command under a lock in the background, like run --detach
    #[command(
        override_usage = "canal submit [OPTIONS] LOCK... [SIZE] [--] COMMAND [ARG]...\n       canal submit [OPTIONS] LOCK... [SIZE] -c STRING\n       LOCK: -k KEY | --read KEY | --write KEY | --key-literal KEY\n       SIZE: -j N | --per P [--buckets B]",
        after_help = SUBMIT_EXAMPLES
    )]
    Submit(RunArgs),
    /// Print the output of a background job
    Log(LogArgs),
    /// Wait for background jobs, and exit with their exit status
    Wait(JobWaitArgs),
    /// Change the priority of a waiting background job
    Priority(PriorityArgs),
    /// Take a lock for a process, or as a lease
    Acquire(AcquireArgs),
    /// Release a process's lock, or a lease
    Release(ReleaseArgs),
    /// Renew a lease
    Renew(RenewArgs),
    /// Show holders, waiters, and why they wait
    #[command(visible_aliases = ["list", "ps"])]
    Status(StatusArgs),
    /// Watch locks in a full-screen view, and act on them
    Top(TopArgs),
    /// Show which commands have ended, when and how
    History(HistoryArgs),
    /// Show wait times, utilisation, and how many slots a lock needs
    Stats(StatsArgs),
    /// Print metrics as OpenMetrics text
    Metrics,
    /// Print the history as a trace for ui.perfetto.dev
    Trace(TraceArgs),
    /// Check whether locks are free: exit code 0 or 75
    Test(TestArgs),
    /// Show the leader that holds a lock: exit code 0, or 75 if none
    Leader(LeaderArgs),
    /// Show and end the processes that hold a lock
    Kill(KillArgs),
    /// Set the size of a lock for everyone, or pause it
    Resize(ResizeArgs),
    /// Run, stop, replace or reload the daemon
    Daemon(DaemonArgs),
    /// Connect standard input and output to the daemon, for ssh
    Bridge(BridgeArgs),
    /// Show the configuration and where each value comes from
    Config {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Find problems with the setup, and how to fix them
    Doctor(DoctorArgs),
    /// Share one table of locks among all users of this machine
    Setup(SetupArgs),
    /// Print a shell's completion script
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Write the man pages to a directory
    Man {
        /// An existing directory
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// For the completion scripts
    #[command(hide = true)]
    Complete {
        /// The kind of words to list
        #[arg(value_name = "WHAT")]
        what: CompletionKind,
        /// The beginning of the word
        #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// For programs that use the library
    #[command(hide = true)]
    DeadlockWatcher,
}

/// Run a command under a lock
#[derive(Args, Debug, Default)]
#[command(
    override_usage = "canal run [OPTIONS] LOCK... [SIZE] [-n | -w DUR] [--] COMMAND [ARG]...\n       canal run [OPTIONS] LOCK... [SIZE] [-n | -w DUR] -c STRING\n       LOCK: -k KEY | --read KEY | --write KEY | --key-literal KEY\n       SIZE: -j N | --per P [--buckets B]",
    after_help = RUN_EXAMPLES
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) asked: RequestArgs,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// How long a node keeps the lock after its last renewal [default: 60]
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_value::ttl, allow_negative_numbers = true, help_heading = "On several machines")]
    pub(crate) ttl: Option<Duration>,
    /// The command and its arguments
    #[arg(hide_short_help = true, value_name = "COMMAND", trailing_var_arg = true, help_heading = None)]
    pub(crate) command: Vec<OsString>,
}

/// How to run the command.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "How to run")]
pub(crate) struct HowArgs {
    /// Run STRING in a shell, with sh -c
    #[arg(short = 'c', value_name = "STRING", allow_hyphen_values = true)]
    pub(crate) shell: Option<OsString>,
    /// End the command after DUR, and exit with 124
    #[arg(long, value_name = "DUR", value_parser = parse_value::some_length, allow_negative_numbers = true)]
    pub(crate) max_run: Option<Length>,
    /// Kill the command DUR after --max-run has sent its signal [default: 10]
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_value::length, allow_negative_numbers = true)]
    pub(crate) kill_after: Option<Length>,
    /// The signal that --max-run sends [default: TERM]
    #[arg(long, hide_short_help = true, value_name = "SIG", value_parser = signal, allow_negative_numbers = true)]
    pub(crate) signal: Option<Signal>,
    /// Keep the lock until the command's child processes have also ended
    #[arg(long)]
    pub(crate) with_children: bool,
    /// Give make, ninja and cargo a jobserver whose tokens are slots of the key
    ///
    /// Each of their jobs takes a slot of the key, and releases it when the job ends. They find the
    /// jobserver through a FIFO, or through a pipe if make is older than 4.4.
    #[arg(long, hide_short_help = true, value_name = "FORM", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    pub(crate) jobserver: Option<JobserverArg>,
    /// What to do if the lock is lost [default: kill]
    ///
    /// A lock can be lost only with an engine or with --on.
    #[arg(long, hide_short_help = true, value_name = "WHAT", value_parser = on_lost())]
    pub(crate) on_lost: Option<OnLost>,
    /// Return once the request is queued, and run the command in the background
    ///
    /// Print the job's number, its position in the queue, and the file its output goes to.
    #[arg(long)]
    pub(crate) detach: bool,
    /// Append the job's output to FILE [default: a file in the state directory]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) log: Option<PathBuf>,
    /// Print the job, or the reason why there is none, as JSON
    #[arg(long, hide_short_help = true)]
    pub(crate) json: bool,
}

/// How the programs of a build find the jobserver.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobserverArg {
    /// Whichever form the build's make supports
    Auto,
    /// Through a FIFO
    Fifo,
    /// Through two file descriptors
    Pipe,
}

/// Take a lock for a process, or as a lease
#[derive(Args, Debug)]
#[command(
    override_usage = "canal acquire [OPTIONS] LOCK... [SIZE] [-n | -w DUR] [--pid PID | --ttl DUR [--on NODES]]\n       LOCK: KEY | -k KEY | --read KEY | --write KEY | --key-literal KEY\n       SIZE: -j N | --per P [--buckets B]",
    after_help = ACQUIRE_EXAMPLES
)]
pub(crate) struct AcquireArgs {
    /// The lock, written as for --key
    #[arg(value_name = "KEY", value_parser = sized_key, help_heading = None)]
    pub(crate) key: Option<WireItem>,
    #[command(flatten)]
    pub(crate) asked: RequestArgs,
    /// The process that owns the lock, such as $$ in a script [default: the parent process]
    #[arg(long, value_name = "PID", value_parser = pid, allow_negative_numbers = true, help_heading = None)]
    pub(crate) pid: Option<u32>,
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// Take a lease that ends DUR after its last renewal, and print its handle and token
    #[arg(long, value_name = "DUR", value_parser = parse_value::ttl, allow_negative_numbers = true, conflicts_with = "pid", help_heading = None)]
    pub(crate) ttl: Option<Duration>,
    /// What to do if the lock is lost [default: kill]
    ///
    /// A lock that belongs to a process can be lost only with an engine.
    #[arg(long, hide_short_help = true, value_name = "WHAT", value_parser = on_lost(), conflicts_with = "ttl", help_heading = None)]
    pub(crate) on_lost: Option<OnLost>,
    /// Print the grant, or the reason why there is none, as JSON
    #[arg(long, help_heading = None)]
    pub(crate) json: bool,
}

/// Release a process's lock, or a lease
#[derive(Args, Debug)]
#[command(
    override_usage = "canal release [--pid PID] KEY\n       canal release [--pid PID] --all\n       canal release --handle H\n       canal release --force --token T"
)]
pub(crate) struct ReleaseArgs {
    /// The key of the hold to release
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Release everything that the process holds
    #[arg(long)]
    pub(crate) all: bool,
    /// Break the hold on KEY, if there is only one (asks first), or the hold given by --token
    ///
    /// Users may break their own holds, and root may break any.
    #[arg(long)]
    pub(crate) force: bool,
    /// The token of the hold to break, as shown by canal status -v
    #[arg(long, value_name = "T", value_parser = number, allow_negative_numbers = true)]
    pub(crate) token: Option<u64>,
    /// With --force KEY: do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) which: HandleArgs,
    /// The process that owns the lock, such as $$ in a script [default: the parent process]
    #[arg(long, value_name = "PID", value_parser = pid, allow_negative_numbers = true, help_heading = None)]
    pub(crate) pid: Option<u32>,
    /// Print the released holds as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Renew a lease
#[derive(Args, Debug)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) which: HandleArgs,
    /// Keep renewing while this process runs, for example canal renew --while $$ &
    ///
    /// canal exits when the owner releases the lease.
    #[arg(long = "while", value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub(crate) while_lives: Option<u32>,
    /// Set how long the lease lasts without a renewal
    #[arg(long, value_name = "DUR", value_parser = parse_value::ttl, allow_negative_numbers = true)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) note: NoteArgs,
    /// Print the lease, or how it was lost, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Filters of `status` and `top`.
#[derive(Args, Debug)]
pub(crate) struct FilterArgs {
    /// Show only PREFIX and the keys below it
    #[arg(long, value_name = "PREFIX", value_parser = plain_key, conflicts_with = "key")]
    pub(crate) under: Option<Key>,
    /// Show only your own holds and requests
    #[arg(long, conflicts_with = "user")]
    pub(crate) mine: bool,
    /// Show only the holds and requests of USER, a name or number
    #[arg(long, value_name = "USER", value_parser = user_name::uid)]
    pub(crate) user: Option<u32>,
    /// Show only locks that have waiters
    #[arg(long)]
    pub(crate) waiting: bool,
}

impl FilterArgs {
    /// Whether a filter restricts what is shown.
    pub(crate) fn is_set(&self) -> bool {
        self.mine || self.waiting || self.user.is_some() || self.under.is_some()
    }

    /// The query for the locks that the filters and KEY select, or for those of a job's session.
    pub(crate) fn query(&self, key: Option<&Key>, session: Option<String>) -> StatusQuery {
        StatusQuery {
            full: key.is_some() || session.is_some(),
            key: key.or(self.under.as_ref()).map(ToString::to_string),
            mine: self.mine,
            uid: self.user,
            waiting: self.waiting,
            session,
            ..StatusQuery::default()
        }
    }
}

/// Show holders, waiters, and why they wait
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Show only KEY and the keys below it, in full, or only background job N
    #[arg(value_name = "KEY|%N", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    #[command(flatten)]
    pub(crate) only: FilterArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print one line for each holder and waiter
    #[arg(short = '1', long, conflicts_with = "json")]
    pub(crate) one_line: bool,
    /// Print the report again after each change, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// Show the leases that ended recently, and why
    #[arg(long, conflicts_with_all = ["watch", "waiting", "one_line"])]
    pub(crate) ended: bool,
    /// Follow the chain of waits from a process or session to its end
    #[arg(long, value_name = "PID|SESSION", value_parser = why, conflicts_with_all = ["key", "under", "mine", "user", "waiting", "one_line", "watch", "ended", "graph"])]
    pub(crate) why: Option<WhyQuery>,
    /// Print waiters and their blockers as a Graphviz graph
    #[arg(long, conflicts_with_all = ["key", "under", "mine", "user", "waiting", "one_line", "watch", "ended"])]
    pub(crate) graph: bool,
}

/// Watch locks in a full-screen view, and act on them
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Show only KEY and the keys below it, or only background job N
    ///
    /// If KEY is given, canal opens the page for that key.
    #[arg(value_name = "KEY|%N", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    #[command(flatten)]
    pub(crate) only: FilterArgs,
}

/// Show wait times, utilisation, and how many slots a lock needs
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// Include only requests for KEY and the keys below it
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Include only the last DUR
    #[arg(long, value_name = "DUR", value_parser = parse_value::some_length, allow_negative_numbers = true)]
    pub(crate) since: Option<Length>,
    /// Include only requests by USER, a name or number
    #[arg(long, value_name = "USER", value_parser = user_name::uid)]
    pub(crate) user: Option<u32>,
    /// Draw with ASCII characters only
    #[arg(long, conflicts_with = "json")]
    pub(crate) ascii: bool,
    /// Write a report to FILE as an SVG image; - means standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "ascii"])]
    pub(crate) svg: Option<PathBuf>,
    /// With --svg: overwrite FILE if it exists
    #[arg(long, requires = "svg")]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the history as a trace for ui.perfetto.dev
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Include only requests for KEY and the keys below it
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Include only the last DUR
    #[arg(long, value_name = "DUR", value_parser = parse_value::some_length, allow_negative_numbers = true)]
    pub(crate) since: Option<Length>,
}

/// Show which commands have ended, when and how
#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// Include only requests for KEY and the keys below it, or only job N
    #[arg(value_name = "KEY|%N", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Include only the last DUR
    #[arg(long, value_name = "DUR", value_parser = parse_value::some_length, allow_negative_numbers = true)]
    pub(crate) since: Option<Length>,
    /// Include only requests by USER, a name or number
    #[arg(long, value_name = "USER", value_parser = user_name::uid)]
    pub(crate) user: Option<u32>,
    /// Show only entries that ended with neither a release nor exit code 0
    #[arg(long)]
    pub(crate) failed: bool,
    /// Show the last N entries [default: 50; all with --json or --csv]
    #[arg(short = 'n', value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) count: Option<u64>,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print CSV with a header
    #[arg(long)]
    pub(crate) csv: bool,
}

/// Check whether locks are free: exit code 0 or 75
#[derive(Args, Debug)]
#[command(
    override_usage = "canal test [OPTIONS] KEY...\n       canal test [OPTIONS] --key-literal KEY --read KEY --write KEY"
)]
pub(crate) struct TestArgs {
    /// The locks that must all be free, written as for --key
    #[arg(value_name = "KEY", value_parser = sized_key, help_heading = None)]
    pub(crate) operands: Vec<WireItem>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    /// Check for N slots, like --count
    #[arg(long = "for", value_name = "N", value_parser = positive, allow_negative_numbers = true, conflicts_with = "count", help_heading = None)]
    pub(crate) wanted: Option<u64>,
    /// Print the expected grant, or the reason why there would be none, as JSON
    #[arg(long, help_heading = None)]
    pub(crate) json: bool,
}

/// Show the leader that holds a lock: exit code 0, or 75 if none
#[derive(Args, Debug)]
pub(crate) struct LeaderArgs {
    /// The key that the candidates lock
    #[arg(value_name = "NAME", value_parser = plain_key)]
    pub(crate) name: Key,
    /// Print a line of JSON now and after each change, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Ask these nodes, named as for canal run --on
    #[arg(long, value_name = "NODES", help_heading = "On several machines")]
    pub(crate) on: Vec<String>,
    /// How many nodes must name the same leader [default: majority]
    #[arg(long, value_name = "HOW MANY", value_parser = leader_require(), requires = "on", help_heading = "On several machines")]
    pub(crate) require: Option<Require>,
}

/// Show and end the processes that hold a lock
#[derive(Args, Debug)]
#[command(override_usage = "canal kill [OPTIONS] KEY|%N\n       canal kill [OPTIONS] --pid PID")]
pub(crate) struct KillArgs {
    /// End the processes that hold KEY, or background job N
    #[arg(value_name = "KEY|%N", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// End this process, which must hold a lock or be waiting for one
    #[arg(long, value_name = "PID", value_parser = pid, allow_negative_numbers = true, conflicts_with = "key")]
    pub(crate) pid: Option<u32>,
    /// Also end the processes that are waiting for KEY
    #[arg(long)]
    pub(crate) waiters: bool,
    /// The signal to send [default: TERM]
    #[arg(short, long, value_name = "SIG", value_parser = signal, allow_negative_numbers = true)]
    pub(crate) signal: Option<Signal>,
    /// Kill the processes that are still running DUR after the signal
    ///
    /// Without this option, canal waits 10 s and then lists the processes that are still running.
    #[arg(long, value_name = "DUR", value_parser = parse_value::length, allow_negative_numbers = true)]
    pub(crate) kill_after: Option<Length>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print the processes that were signalled, and those that remain, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the output of a background job
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// The number of a job, or a key, which stands for its latest job
    #[arg(value_name = "N|KEY")]
    pub(crate) job: Option<String>,
    /// Keep printing what the job writes until it ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Remove the oldest finished jobs until the rest fit within jobs.max
    ///
    /// jobs.max is a setting in canal.toml.
    #[arg(long, conflicts_with_all = ["job", "follow"])]
    pub(crate) prune: bool,
    /// With --prune: remove all finished jobs
    #[arg(long, requires = "prune")]
    pub(crate) all: bool,
    /// With --prune: print what was removed as JSON
    #[arg(long, requires = "prune")]
    pub(crate) json: bool,
}

/// Wait for background jobs, and exit with their exit status
#[derive(Args, Debug)]
pub(crate) struct JobWaitArgs {
    /// The numbers of the jobs
    #[arg(value_name = "N", value_parser = job, required = true)]
    pub(crate) jobs: Vec<u64>,
    /// Print the outcome of each job as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change the priority of a waiting background job
#[derive(Args, Debug)]
pub(crate) struct PriorityArgs {
    /// The number of the job
    #[arg(value_name = "N", value_parser = job)]
    pub(crate) job: u64,
    /// The new priority [default: ahead of all other waiters for its keys]
    #[arg(value_name = "P", value_parser = priority, allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Print the change as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Set the size of a lock for everyone, or pause it
#[derive(Args, Debug)]
#[command(
    override_usage = "canal resize KEY --per P [--buckets B]\n       canal resize KEY --slots N\n       canal resize KEY --forget\n       canal resize KEY --pause\n       canal resize KEY --resume\n       canal resize KEY --without N[,N]... | --with N[,N]..."
)]
pub(crate) struct ResizeArgs {
    /// The lock's key
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Allow P slots in each bucket
    #[arg(long, value_name = "P", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) per: Option<u64>,
    /// The number of buckets [default: 1]
    #[arg(long, value_name = "B", value_parser = number, allow_negative_numbers = true)]
    pub(crate) buckets: Option<u64>,
    /// Allow N slots, such as 4, cpus or memory:8G; 0 pauses
    #[arg(short = 'j', long, value_name = "N", value_parser = slots_or_none, allow_negative_numbers = true)]
    pub(crate) slots: Option<u64>,
    /// Forget the stored size
    #[arg(long, conflicts_with_all = ["per", "buckets", "slots"])]
    pub(crate) forget: bool,
    /// Let holders finish, and make requests wait until --resume
    #[arg(long, conflicts_with_all = ["per", "buckets", "slots", "forget", "resume"])]
    pub(crate) pause: bool,
    /// End a pause
    #[arg(long, conflicts_with_all = ["per", "buckets", "slots", "forget"])]
    pub(crate) resume: bool,
    /// Take bucket N out of service, or slot N of a lock without buckets
    ///
    /// Its holder keeps it, and no one else gets it until --with.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = number, conflicts_with_all = ["per", "buckets", "slots", "forget", "pause", "resume", "with"])]
    pub(crate) without: Vec<u64>,
    /// Return bucket N, or slot N, to service
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = number, conflicts_with_all = ["per", "buckets", "slots", "forget", "pause", "resume"])]
    pub(crate) with: Vec<u64>,
    /// Print the stored size as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run, stop, replace or reload the daemon
#[derive(Args, Debug)]
pub(crate) struct DaemonArgs {
    /// Stop the running daemon; the next daemon takes over its locks
    #[arg(long, conflicts_with_all = ["replace", "idle_exit", "discard_journal", "engine", "engine_ttl", "host", "no_engine"])]
    pub(crate) stop: bool,
    /// Replace the running daemon, and return once the new one is ready
    #[arg(long)]
    pub(crate) replace: bool,
    /// With --replace: stay in the foreground as the new daemon
    #[arg(long, conflicts_with_all = ["stop", "reload"])]
    pub(crate) foreground: bool,
    /// Make the running daemon read its configuration again
    ///
    /// If the configuration is invalid, nothing changes.
    #[arg(long, conflicts_with_all = ["stop", "replace", "idle_exit", "discard_journal", "engine", "engine_ttl", "host", "no_engine"])]
    pub(crate) reload: bool,
    /// Exit after DUR with no locks, requests or clients [default: as configured]
    #[arg(long, value_name = "DUR", value_parser = parse_value::some_length, allow_negative_numbers = true)]
    pub(crate) idle_exit: Option<Length>,
    /// Share one table with other hosts through postgres://… or etcd://…
    /// [default: $CANAL_ENGINE, or as configured]
    #[arg(long, value_name = "URL")]
    pub(crate) engine: Option<String>,
    /// Give up this host's locks DUR after its last renewal [default: 60]
    #[arg(long, value_name = "DUR", value_parser = parse_value::some_length, allow_negative_numbers = true)]
    pub(crate) engine_ttl: Option<Length>,
    /// This host's name [default: the machine's]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Stop using the engine that this socket's daemon used before
    #[arg(long, conflicts_with_all = ["engine", "engine_ttl", "host"])]
    pub(crate) no_engine: bool,
    /// Set an unusable journal aside; first check the processes in it yourself
    #[arg(long)]
    pub(crate) discard_journal: bool,
    /// Declare that no daemon has run here before, so that this node grants its first lease at once
    ///
    /// The option is refused if an earlier daemon has left files here, and applies to this start
    /// only.
    #[arg(long, conflicts_with_all = ["stop", "reload", "replace", "discard_journal", "engine", "engine_ttl", "host"])]
    pub(crate) first_start: bool,
    /// Report readiness and errors to descriptor 3, to the client that started this daemon
    #[arg(long, hide = true)]
    pub(crate) on_demand: bool,
    /// Watch over the daemon that started it
    #[arg(long, hide = true)]
    pub(crate) watcher: bool,
    /// Run the program of a hook for the daemon that started it
    #[arg(long, hide = true)]
    pub(crate) hook_guard: bool,
}

/// Connect standard input and output to the daemon, for ssh
#[derive(Args, Debug)]
#[command(
    override_usage = "canal bridge [OPTIONS]\n       canal bridge [OPTIONS] --leases [--keys PREFIX...]"
)]
pub(crate) struct BridgeArgs {
    /// Allow only taking, renewing and releasing node leases
    #[arg(long)]
    pub(crate) leases: bool,
    /// Allow only these keys and the keys below them
    #[arg(long, value_name = "PREFIX", value_parser = prefix, num_args = 1.., requires = "leases")]
    pub(crate) keys: Vec<Key>,
}

/// Find problems with the setup, and how to fix them
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Check this engine too, without changing it
    /// [default: $CANAL_ENGINE, or as configured if no daemon is running]
    #[arg(long, value_name = "URL")]
    pub(crate) engine: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Share one table of locks among all users of this machine
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct SetupArgs {
    /// Declare that no daemon has run here before, so that this node grants its first lease at once
    #[arg(long)]
    pub(crate) first_start: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the steps without doing them
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
}

/// A shell that has a completion script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The kinds of words that the completions ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletionKind {
    /// The keys in use, with a stored size, or paused
    Keys,
    /// The processes that hold or wait
    Pids,
}

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
pub(crate) const PURPOSES: &[(&str, &str)] = &[
    ("Run", "run acquire renew release submit log wait"),
    (
        "Inspect and control",
        "status top test leader history stats trace metrics kill priority resize",
    ),
    ("Operate", "daemon bridge config doctor setup completions man"),
];

/// The template of `canal help`, which groups these commands. clap can only print one list.
pub(crate) fn by_purpose(verbs: &Command) -> String {
    let mut text = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in PURPOSES {
        let _ = write!(text, "\n{heading}:\n");
        for name in names.split(' ') {
            let verb = verbs.find_subcommand(name);
            let about = verb.and_then(Command::get_about).cloned().unwrap_or_default();
            let _ = writeln!(text, "  {name:<11}  {about}");
        }
    }
    text + "\n{options}{after-help}"
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    fn run(args: &[&str]) -> RunArgs {
        let words = ["canal", "run"].iter().chain(args);
        match Cli::try_parse_from(words).map(|cli| cli.verb) {
            Ok(Some(Verb::Run(run))) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_command_has_one_place_in_the_help() {
        let shown = Cli::command();
        let shown = shown.get_subcommands().filter(|verb| !verb.is_hide_set());
        let mut shown: Vec<_> = shown.map(Command::get_name).collect();
        let mut placed: Vec<_> = PURPOSES.iter().flat_map(|(_, names)| names.split(' ')).collect();
        shown.sort_unstable();
        placed.sort_unstable();
        assert_eq!(placed, shown);
    }

    #[test]
    fn the_short_help_fits_a_screen() {
        let mut canal = Cli::command();
        assert!(canal.render_help().to_string().lines().count() <= 40);
        canal.build();
        let run = canal.find_subcommand_mut("run").unwrap().render_help().to_string();
        assert!(run.lines().count() <= 40, "{run}");
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_end_at_the_first_operand() {
        for (args, command) in [
            (&["-k", "x", "make", "-j8"][..], &["make", "-j8"][..]),
            (&["-kx", "make", "--key", "y", "-n"], &["make", "--key", "y", "-n"]),
            (&["-k", "x", "--", "make", "-j8"], &["make", "-j8"]),
            (&["-k", "x", "make", "--", "-j8"], &["make", "--", "-j8"]),
            (&["-k", "x", "--", "--", "y"], &["--", "y"]),
            (&["-k", "x", "--", "-weird"], &["-weird"]),
            (&["-k", "x", "make", "--help"], &["make", "--help"]),
            (&["-k", "x", "run", "help"], &["run", "help"]),
            (&["-k", "x", ""], &[""]),
        ] {
            let run = run(args);
            assert_eq!(run.command, command, "{args:?}");
            assert_eq!(run.asked.lock.keys.len(), 1, "{args:?}");
            assert!(!run.asked.wait.no_wait, "{args:?}");
        }
    }

    #[test]
    fn an_unknown_option_before_the_command_is_never_the_command() {
        for args in [&["canal", "run", "-k", "x", "--bogus", "make"][..], &["canal", "run", "-Z"]] {
            assert!(Cli::try_parse_from(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn a_shell_string_may_begin_with_a_dash() {
        assert_eq!(run(&["-k", "x", "-c", "-x"]).how.shell.unwrap(), "-x");
    }
}
