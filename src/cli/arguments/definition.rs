//! The definition of the command line: one for parsing, help, man pages and completions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use nix::sys::signal::Signal;

use super::duration::{self, Length};
use super::ending::on_lost::OnLostArg;
use super::ending::signal;
use super::handle::HandleArgs;
use super::lock::{KeyArg, LockArgs, plain_key, prefix};
use super::nodes::{LeaderNodesArgs, NodesArgs};
use super::note::NoteArgs;
use super::number::{number, pid, positive};
use super::session::SessionArgs;
use super::wait::WaitArgs;
use super::why_target::WhyTarget;
use crate::cli::output::stderr::Verbosity;
use crate::cli::user_name;
use crate::core::Key;

/// What `canal help` says at its end.
const AFTER_HELP: &str = "\
Exit codes: the command's; 75 not acquired; 122 lost; 124 ended by --max-run; 125 canal failed;
126 and 127 the command cannot be run.
A first try: canal run --key x -- echo hello";

/// What `canal run -h` says at its end.
const RUN_EXAMPLES: &str = "\
Examples:
  canal run -k deploy -- ./deploy.sh         one at a time
  canal run -k gpu -j 4 -- ./train.sh        four at a time
  canal run -k db --per 3 --buckets 2 ./job  three on each of two backends
  canal run -n -E 0 -k sync -- ./sync.sh     from cron: skip if it still runs
  canal run -w 10m -k deploy -- ./deploy.sh  give up after ten minutes (75)
  canal run --write db -- ./migrate.sh       alone, without jobs and readers
  canal run -k x -c 'make && ./test'         a command line for the shell";

/// What `canal acquire -h` says at its end.
const ACQUIRE_EXAMPLES: &str = "\
Examples:
  canal acquire nightly --pid $$ -n || exit  in a script, which holds it until it ends
  canal acquire --ttl 10m deploy             a lease: canal renew, canal release --handle
  canal acquire --ttl 60s --on a,b,c deploy  a lease at several daemons that share nothing";

/// Limits how many commands run at once, and shows what runs, what waits and why
#[derive(Debug, Parser)]
#[command(name = "canal", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

/// What every command takes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// Talk to the daemon of this socket; its journal and state lie beside it
    /// [default: $CANAL_SOCKET, else /run/canal/canal.sock, else /tmp/canal-UID/canal.sock]
    #[arg(long, value_name = "PATH", global = true, display_order = 900)]
    pub(crate) socket: Option<PathBuf>,
    /// Do not start a daemon if none runs
    #[arg(long, global = true, display_order = 901)]
    pub(crate) no_start: bool,
    /// Do not show waiting lines and notes, nor that the lock was not free; twice: no messages at all
    #[arg(short, long, global = true, display_order = 902, conflicts_with = "verbose", action = ArgAction::Count)]
    pub(crate) quiet: u8,
    /// Print more messages; twice: also which daemon is asked and as whom, each call and what became
    /// of it, and all that a daemon logs
    #[arg(short, long, global = true, display_order = 903, action = ArgAction::Count)]
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

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Take the lock, run a command, give the lock back
    Run(RunArgs),
    /// Take the lock for a process until that ends, or as a lease
    Acquire(AcquireArgs),
    /// Give back what a process or a lease holds
    Release(ReleaseArgs),
    /// Renew a lease
    Renew(RenewArgs),
    /// Show holders, waiters, and why they wait
    #[command(visible_aliases = ["list", "ps"])]
    Status(StatusArgs),
    /// Show keys, holders and waiters on the whole terminal, as they change, and act on them
    Top(TopArgs),
    /// Show what ended: when, how, and how long it waited and held its locks
    History(HistoryArgs),
    /// Show waits, holds and use over time, and how many slots a lock should have
    Stats(StatsArgs),
    /// Print the daemon's figures for a monitor, as OpenMetrics text
    Metrics(MetricsArgs),
    /// Print what ended as a trace, one row for each slot, for ui.perfetto.dev
    Trace(TraceArgs),
    /// Ask whether locks are free, without taking them: exit code 0 or 75
    Test(TestArgs),
    /// Show who leads by holding a lock: exit code 0, or 75 if nobody does
    Leader(LeaderArgs),
    /// End the process that holds a lock, after showing it
    Kill(KillArgs),
    /// Store the size of a lock, which then counts for everybody; or pause it
    Resize(ResizeArgs),
    /// Run the daemon in the foreground, stop it, or replace it
    Daemon(DaemonArgs),
    /// Join standard input and output to the daemon: what ssh runs at a node
    Bridge(BridgeArgs),
    /// Show the configuration in force, and where each value comes from
    Config(ConfigArgs),
    /// Look for what is wrong with the set-up, and say what to do about it
    Doctor(DoctorArgs),
    /// Make one table of locks for all users of this machine
    Setup(SetupArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Write the man pages into a directory
    Man(ManArgs),
    /// For the completion scripts
    #[command(hide = true)]
    Complete(CompleteArgs),
    /// For programs that use the library
    #[command(hide = true)]
    Lookout,
}

/// Take the lock, run a command, give the lock back
#[derive(Args, Debug, Default)]
#[command(
    override_usage = "canal run [OPTIONS] LOCK... [SIZE] [-n | -w DUR] [--] COMMAND [ARG]...\n       canal run [OPTIONS] LOCK... [SIZE] [-n | -w DUR] -c STRING\n       LOCK: -k KEY | --read KEY | --write KEY | --key-literal KEY\n       SIZE: -j N | --per P [--buckets B]",
    after_help = RUN_EXAMPLES
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) note: NoteArgs,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// With --on: how long a node keeps the lock when it does not hear of us any more [default: 60]
    #[arg(long, value_name = "DUR", value_parser = duration::parse_ttl, allow_negative_numbers = true, help_heading = "Over several machines")]
    pub(crate) ttl: Option<Duration>,
    /// The command and its arguments; options of canal end where it begins
    #[arg(value_name = "COMMAND", trailing_var_arg = true, help_heading = None)]
    pub(crate) command: Vec<OsString>,
}

/// How to run the command.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "How to run")]
pub(crate) struct HowArgs {
    /// Run STRING with sh -c
    #[arg(short = 'c', value_name = "STRING", allow_hyphen_values = true)]
    pub(crate) shell: Option<OsString>,
    /// End the command after DUR, and exit with code 124
    #[arg(long, value_name = "DUR", value_parser = duration::parse_some, allow_negative_numbers = true)]
    pub(crate) max_run: Option<Length>,
    /// Kill the command if it still runs DUR after --max-run has signalled it
    /// [default: 10]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) kill_after: Option<Length>,
    /// The signal by which --max-run ends the command [default: TERM]
    #[arg(long, value_name = "SIG", value_parser = signal::parse, allow_negative_numbers = true)]
    pub(crate) signal: Option<Signal>,
    /// Keep the lock until the processes that the command started have ended, too
    #[arg(long)]
    pub(crate) with_children: bool,
    /// Give make and cargo a jobserver: each job of theirs takes a slot of the key, and gives it
    /// back at its end
    #[arg(long)]
    pub(crate) jobserver: bool,
    /// What to do to the command if the lock is lost, which is possible only over an engine for
    /// many hosts [default: kill]
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) on_lost: Option<OnLostArg>,
}

/// Take the lock for a process until that ends, or as a lease
#[derive(Args, Debug)]
#[command(
    override_usage = "canal acquire [OPTIONS] LOCK... [SIZE] [-n | -w DUR] [--pid PID | --ttl DUR [--on NODES]]\n       LOCK: KEY | -k KEY | --read KEY | --write KEY | --key-literal KEY\n       SIZE: -j N | --per P [--buckets B]",
    after_help = ACQUIRE_EXAMPLES
)]
pub(crate) struct AcquireArgs {
    /// The lock's key, instead of --key and in the same form
    #[arg(value_name = "KEY", help_heading = None)]
    pub(crate) key: Option<KeyArg>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) note: NoteArgs,
    #[command(flatten)]
    pub(crate) whose: WhoseArgs,
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// Take it as a lease, owned by no process: it ends when it was not renewed for DUR. Prints its
    /// handle, the secret that canal renew and canal release need, and its token
    #[arg(long, value_name = "DUR", value_parser = duration::parse_ttl, allow_negative_numbers = true, conflicts_with = "pid", help_heading = None)]
    pub(crate) ttl: Option<Duration>,
    /// What to do to the process if the lock is lost, which is possible only over an engine for
    /// many hosts [default: kill]
    #[arg(long, value_name = "WHAT", value_enum, conflicts_with = "ttl", help_heading = None)]
    pub(crate) on_lost: Option<OnLostArg>,
    /// Print what was granted, or why not, as JSON
    #[arg(long, help_heading = None)]
    pub(crate) json: bool,
}

/// The owner of the lock.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct WhoseArgs {
    /// The process that owns the lock; in a script: --pid $$ [default: the parent process]
    #[arg(long, value_name = "PID", value_parser = pid, allow_negative_numbers = true, help_heading = None)]
    pub(crate) pid: Option<u32>,
}

/// Give back what a process or a lease holds
#[derive(Args, Debug)]
#[command(
    override_usage = "canal release [--pid PID] KEY\n       canal release [--pid PID] --all\n       canal release --handle H\n       canal release --force --token T"
)]
pub(crate) struct ReleaseArgs {
    /// The process's latest hold of this key
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Everything that the process holds
    #[arg(long)]
    pub(crate) all: bool,
    /// Break the only hold of KEY after asking, or the hold that --token names (a hold of the same
    /// user, or as root any hold)
    #[arg(long)]
    pub(crate) force: bool,
    /// The token of the hold to break; `canal status -v` shows it
    #[arg(long, value_name = "T", value_parser = number, allow_negative_numbers = true)]
    pub(crate) token: Option<u64>,
    /// With --force KEY: do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) which: HandleArgs,
    #[command(flatten)]
    pub(crate) whose: WhoseArgs,
    /// Print what was given back as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Renew a lease
#[derive(Args, Debug)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) which: HandleArgs,
    /// Renew it again and again as long as this process lives; in a script:
    /// canal renew --while $$ &
    #[arg(long = "while", value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub(crate) while_lives: Option<u32>,
    /// For how long it lives without a renewal, from this one on
    #[arg(long, value_name = "DUR", value_parser = duration::parse_ttl, allow_negative_numbers = true)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) note: NoteArgs,
    /// Print the lease, or how it was lost, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which part of the state is shown, beside that of one key.
#[derive(Args, Debug)]
pub(crate) struct FilterArgs {
    /// Only the keys below PREFIX, and PREFIX itself
    #[arg(long, value_name = "PREFIX", value_parser = plain_key, conflicts_with = "key")]
    pub(crate) under: Option<Key>,
    /// Only what you hold and wait for
    #[arg(long, conflicts_with = "user")]
    pub(crate) mine: bool,
    /// Only what this user holds and waits for; a name or a number
    #[arg(long, value_name = "USER", value_parser = user_name::uid)]
    pub(crate) user: Option<u32>,
    /// Only locks for which something waits
    #[arg(long)]
    pub(crate) waiting: bool,
}

impl FilterArgs {
    /// Whether only a part is shown.
    pub(crate) fn is_set(&self) -> bool {
        self.mine || self.waiting || self.user.is_some() || self.under.is_some()
    }
}

/// Show holders, waiters, and why they wait
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Only this key and the keys below it, in full
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    #[command(flatten)]
    pub(crate) only: FilterArgs,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it again after each change, until interrupted; on a terminal it fits the screen
    #[arg(long)]
    pub(crate) watch: bool,
    /// Show the leases that ended lately: whose, when and why
    #[arg(long, conflicts_with_all = ["watch", "waiting"])]
    pub(crate) ended: bool,
    /// Show what this process or session waits for, to the end of the chain, and what waits for it
    #[arg(long, value_name = "PID|SESSION", conflicts_with_all = ["key", "under", "mine", "user", "waiting", "watch", "ended", "graph"])]
    pub(crate) why: Option<WhyTarget>,
    /// Print all waiters and their blockers as a graph for Graphviz (DOT)
    #[arg(long, conflicts_with_all = ["key", "under", "mine", "user", "waiting", "watch", "ended"])]
    pub(crate) graph: bool,
}

/// Show keys, holders and waiters on the whole terminal, as they change, and act on them
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Only this key and the keys below it; begin with the page of the key
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    #[command(flatten)]
    pub(crate) only: FilterArgs,
}

/// Show waits, holds and use over time, and how many slots a lock should have
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// Only what asked for this key or one below it
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Only what ended within the last DUR
    #[arg(long, value_name = "DUR", value_parser = duration::parse_some, allow_negative_numbers = true)]
    pub(crate) since: Option<Length>,
    /// Only what is of this user; a name or a number
    #[arg(long, value_name = "USER", value_parser = user_name::uid)]
    pub(crate) user: Option<u32>,
    /// Draw with plain ASCII characters, as is done where the locale is not UTF-8
    #[arg(long, conflicts_with = "json")]
    pub(crate) ascii: bool,
    /// Write a report with pictures to FILE, as SVG; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "ascii"])]
    pub(crate) svg: Option<PathBuf>,
    /// Replace the FILE of --svg if it is there
    #[arg(long, requires = "svg")]
    pub(crate) force: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the daemon's figures for a monitor, as OpenMetrics text
#[derive(Args, Debug)]
pub(crate) struct MetricsArgs {}

/// Print what ended as a trace, one row for each slot, for ui.perfetto.dev
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Only what asked for this key or one below it
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Only what ended within the last DUR
    #[arg(long, value_name = "DUR", value_parser = duration::parse_some, allow_negative_numbers = true)]
    pub(crate) since: Option<Length>,
}

/// Show what ended: when, how, and how long it waited and held its locks
#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// Only what asked for this key or one below it
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// Only what ended within the last DUR
    #[arg(long, value_name = "DUR", value_parser = duration::parse_some, allow_negative_numbers = true)]
    pub(crate) since: Option<Length>,
    /// Only what is of this user; a name or a number
    #[arg(long, value_name = "USER", value_parser = user_name::uid)]
    pub(crate) user: Option<u32>,
    /// Only what ended otherwise than by a release or with exit code 0
    #[arg(long)]
    pub(crate) failed: bool,
    /// Show the last N [default: 50; with --json or --csv: all]
    #[arg(short = 'n', value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) count: Option<u64>,
    /// Print it as JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print it as comma-separated values, with a line of names
    #[arg(long)]
    pub(crate) csv: bool,
}

/// Ask whether locks are free, without taking them: exit code 0 or 75
#[derive(Args, Debug)]
#[command(
    override_usage = "canal test [OPTIONS] KEY...\n       canal test [OPTIONS] --key-literal KEY --read KEY --write KEY"
)]
pub(crate) struct TestArgs {
    /// The locks, each as --key takes it; all of them must be free
    #[arg(value_name = "KEY", help_heading = None)]
    pub(crate) operands: Vec<KeyArg>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    /// The same as --count
    #[arg(long = "for", value_name = "N", value_parser = positive, allow_negative_numbers = true, conflicts_with = "count", help_heading = None)]
    pub(crate) wanted: Option<u64>,
    /// Print what would be granted, or why not, as JSON
    #[arg(long, help_heading = None)]
    pub(crate) json: bool,
}

impl TestArgs {
    /// The locks, as `canal run` is told them.
    pub(crate) fn lock(&self) -> LockArgs {
        let mut lock = self.lock.clone();
        lock.keys.extend(self.operands.iter().cloned());
        lock.count = lock.count.or(self.wanted);
        lock
    }
}

/// Show who leads by holding a lock: exit code 0, or 75 if nobody does
#[derive(Args, Debug)]
pub(crate) struct LeaderArgs {
    /// The key that the candidates take, for example with canal run -k NAME --note ADDRESS
    #[arg(value_name = "NAME", value_parser = plain_key)]
    pub(crate) name: Key,
    /// Print a line of JSON now and after each change, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) nodes: LeaderNodesArgs,
}

/// End the process that holds a lock, after showing it
#[derive(Args, Debug)]
#[command(override_usage = "canal kill [OPTIONS] KEY\n       canal kill [OPTIONS] --pid PID")]
pub(crate) struct KillArgs {
    /// The processes that hold this key
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// This process, if it holds something or waits
    #[arg(long, value_name = "PID", value_parser = pid, allow_negative_numbers = true, conflicts_with = "key")]
    pub(crate) pid: Option<u32>,
    /// With KEY: the processes that wait for it, too
    #[arg(long)]
    pub(crate) waiters: bool,
    /// The signal that is sent [default: TERM]
    #[arg(short, long, value_name = "SIG", value_parser = signal::parse, allow_negative_numbers = true)]
    pub(crate) signal: Option<Signal>,
    /// Kill what has not ended DUR after the signal. Without it, canal waits 10 s and then says what
    /// is left
    #[arg(long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) kill_after: Option<Length>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print what was signalled, and what is left, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Store the size of a lock, which then counts for everybody; or pause it
#[derive(Args, Debug)]
#[command(
    override_usage = "canal resize KEY --per P [--buckets B]\n       canal resize KEY --slots N\n       canal resize KEY --forget\n       canal resize KEY --pause\n       canal resize KEY --resume"
)]
pub(crate) struct ResizeArgs {
    /// The lock's key
    #[arg(value_name = "KEY", value_parser = plain_key)]
    pub(crate) key: Option<Key>,
    /// At most P at once in each bucket
    #[arg(long, value_name = "P", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) per: Option<u64>,
    /// How many buckets there are now [default: 1]
    #[arg(long, value_name = "B", value_parser = number, allow_negative_numbers = true)]
    pub(crate) buckets: Option<u64>,
    /// At most N at once; 0 is --pause
    #[arg(short = 'j', long, value_name = "N", value_parser = number, allow_negative_numbers = true)]
    pub(crate) slots: Option<u64>,
    /// Forget the stored size
    #[arg(long, conflicts_with_all = ["per", "buckets", "slots"])]
    pub(crate) forget: bool,
    /// Grant no more slots until --resume: holders finish, requests wait; the size stays as it is
    #[arg(long, conflicts_with_all = ["per", "buckets", "slots", "forget", "resume"])]
    pub(crate) pause: bool,
    /// End a pause
    #[arg(long, conflicts_with_all = ["per", "buckets", "slots", "forget"])]
    pub(crate) resume: bool,
    /// Print what was stored as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run the daemon in the foreground, stop it, or replace it
#[derive(Args, Debug)]
pub(crate) struct DaemonArgs {
    /// Stop the daemon that runs; holds stay held, and the next daemon takes them over
    #[arg(long, conflicts_with_all = ["replace", "idle_exit", "discard_journal", "engine", "engine_ttl", "host", "no_engine"])]
    pub(crate) stop: bool,
    /// Stop the daemon that runs and take its place
    #[arg(long)]
    pub(crate) replace: bool,
    /// Have the daemon that runs read its configuration again; a broken one changes nothing
    #[arg(long, conflicts_with_all = ["stop", "replace", "idle_exit", "discard_journal", "engine", "engine_ttl", "host", "no_engine"])]
    pub(crate) reload: bool,
    /// End after DUR with nothing held, waiting or connected [default: the configuration's]
    #[arg(long, value_name = "DUR", value_parser = duration::parse_some, allow_negative_numbers = true)]
    pub(crate) idle_exit: Option<Length>,
    /// Share one table with other hosts: the engine that keeps it, postgres://… or etcd://…
    /// [default: $CANAL_ENGINE, then the configuration's]
    #[arg(long, value_name = "URL")]
    pub(crate) engine: Option<String>,
    /// Locks of this host are void DUR after its last renewal at the engine [default: 60]
    #[arg(long, value_name = "DUR", value_parser = duration::parse_some, allow_negative_numbers = true)]
    pub(crate) engine_ttl: Option<Length>,
    /// The name under which people know this host [default: the machine's]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// From now on work without the engine that this place used before
    #[arg(long, conflicts_with_all = ["engine", "engine_ttl", "host"])]
    pub(crate) no_engine: bool,
    /// Set a journal aside that cannot be used, after dealing with the processes that it names
    #[arg(long)]
    pub(crate) discard_journal: bool,
    /// A client started it: readiness and errors go to descriptor 3
    #[arg(long, hide = true)]
    pub(crate) on_demand: bool,
    /// A daemon started it, to outlive it
    #[arg(long, hide = true)]
    pub(crate) watcher: bool,
    /// A daemon started it, to run the program of a hook
    #[arg(long, hide = true)]
    pub(crate) hook_guard: bool,
}

/// Join standard input and output to the daemon: what ssh runs at a node
#[derive(Args, Debug)]
#[command(
    override_usage = "canal bridge [OPTIONS]\n       canal bridge [OPTIONS] --leases [--keys PREFIX...]"
)]
pub(crate) struct BridgeArgs {
    /// Let the other side do nothing but take, renew and release leases over nodes
    #[arg(long)]
    pub(crate) leases: bool,
    /// Only for these keys and the keys below them
    #[arg(long, value_name = "PREFIX", value_parser = prefix, num_args = 1.., requires = "leases")]
    pub(crate) keys: Vec<Key>,
}

/// Show the configuration in force, and where each value comes from
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Look for what is wrong with the set-up, and say what to do about it
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Look at this engine too, before any daemon uses it; nothing is changed there
    /// [default: $CANAL_ENGINE; if no daemon runs, the configuration's]
    #[arg(long, value_name = "URL")]
    pub(crate) engine: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make one table of locks for all users of this machine
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct SetupArgs {
    /// Do it without a question
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only print what would be done
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
}

/// Print the completion script of a shell
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// A shell that has a completion script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Write the man pages into a directory
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory, which must be there
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// For the completion scripts
#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    /// What to list
    #[arg(value_name = "WHAT")]
    pub(crate) what: CompletionKind,
    /// What it begins with
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// What can be listed for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletionKind {
    /// The keys in use, with a stored size, or paused
    Keys,
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
            assert_eq!(run.lock.keys.len(), 1, "{args:?}");
            assert!(!run.wait.no_wait, "{args:?}");
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
