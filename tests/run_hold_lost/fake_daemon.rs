//! A fake daemon that grants every request, and `canal run` under it.

use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use canal::protocol::frame::{self, Decoder};
use canal::protocol::message_size::MESSAGE_BYTES_MAX;
use canal::sys::clock::boottime_ms;
use canal::sys::deadline::{Deadline, Writer};
use canal::sys::fds;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::wait_until;

/// A long time, in milliseconds.
pub(crate) const LONG: u64 = 600_000;

/// A daemon that runs in threads of the test.
pub(crate) struct Fake {
    dir: tempfile::TempDir,
    shared: Arc<Mutex<Shared>>,
}

/// What the daemon does, and the calls that it got.
pub(crate) struct Shared {
    /// How long after a grant TERM and KILL are due; `None` if there is no engine.
    sure: Option<(u64, u64)>,
    /// The page of the last grant, or the page for a client that asks again.
    pub(crate) writer: Option<Writer>,
    /// The reason for the loss that the next daemon reports, if it does.
    pub(crate) lost: Option<&'static str>,
    /// The calls so far: method and parameters.
    pub(crate) calls: Vec<(String, Value)>,
    /// Whether the daemon no longer answers.
    gone: bool,
}

pub(crate) fn deadline(term_in: u64, kill_in: u64) -> Deadline {
    let now = boottime_ms();
    Deadline { reached_at: now, term_at: now + term_in, kill_at: now + kill_in }
}

pub(crate) fn writer(term_in: u64, kill_in: u64) -> Writer {
    Writer::create(3, "etcd", "alpha", deadline(term_in, kill_in)).unwrap()
}

impl Fake {
    /// Grants have deadlines after these numbers of milliseconds.
    pub(crate) fn sure(term_in: u64, kill_in: u64) -> Self {
        Self::start(Some((term_in, kill_in)))
    }

    pub(crate) fn start(sure: Option<(u64, u64)>) -> Self {
        let dir = tempfile::Builder::new().prefix("canal-lost-").tempdir().unwrap();
        fs::DirBuilder::new().mode(0o700).create(dir.path().join("run")).unwrap();
        let listener = UnixListener::bind(dir.path().join("run/canal.sock")).unwrap();
        let shared = Shared { sure, writer: None, lost: None, calls: Vec::new(), gone: false };
        let shared = Arc::new(Mutex::new(shared));
        let fake = Self { dir, shared };
        let shared = Arc::clone(&fake.shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &shared));
            }
        });
        fake
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    /// The text of a file in its folder; empty if there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    /// Waits until a file of its folder has a line.
    #[track_caller]
    pub(crate) fn line(&self, name: &str) -> String {
        wait_until(&format!("a line in {name}"), || self.read(name).contains('\n'));
        self.read(name).lines().next().unwrap_or_default().to_owned()
    }

    /// Sets the deadline to these milliseconds from now, although it was later before, and wakes
    /// the wrapper. So a test does not depend on the time of its earlier steps.
    pub(crate) fn hasten(&self, running: &Running, term_in: u64, kill_in: u64) -> Deadline {
        let deadline = deadline(term_in, kill_in);
        self.shared().writer.as_ref().unwrap().publish(deadline);
        // Any signal wakes the wrapper; it passes this one on, and the command ignores it.
        running.signal(Signal::SIGWINCH);
        deadline
    }

    /// Ends as a daemon that is killed.
    pub(crate) fn die(&self) {
        let mut shared = self.shared();
        shared.gone = true;
        shared.writer = None;
    }

    /// `canal run --key db OPTIONS -- sh -c SCRIPT` in the folder, without a terminal.
    pub(crate) fn canal(&self, options: &[&str], script: &str) -> Command {
        let mut command = Command::new("setsid");
        command.arg("--wait").arg(env!("CARGO_BIN_EXE_canal"));
        command.args(["run", "--no-start", "--key", "db", "--socket"]);
        command.arg(self.path("run/canal.sock")).args(options).args(["--", "sh", "-c", script]);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"CANAL_") {
                command.env_remove(name);
            }
        }
        command.current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        command
    }

    pub(crate) fn output(&self, options: &[&str], script: &str) -> Output {
        self.canal(options, script).output().unwrap()
    }

    pub(crate) fn spawn(&self, options: &[&str], script: &str) -> Running {
        Running(self.canal(options, script).spawn().unwrap())
    }
}

/// A `canal run` that runs while the test goes on; `setsid` becomes it.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end; returns its exit code and its stderr.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }

    /// Waits only for its end: other processes may have its stderr.
    pub(crate) fn code(mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

/// Whether a process exists and is not a zombie.
pub(crate) fn lives(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
}

pub(crate) fn signal(pid: &str, signal: Signal) {
    kill(Pid::from_raw(pid.parse().unwrap()), signal).unwrap();
}

fn serve(stream: &UnixStream, shared: &Mutex<Shared>) {
    let mut decoder = Decoder::new(MESSAGE_BYTES_MAX);
    loop {
        let message = decoder.next_message().unwrap().map(|it| frame::parse::<Value>(it).unwrap());
        if let Some(call) = message {
            answer(stream.as_fd(), &call, &mut shared.lock().unwrap());
            continue;
        }
        let mut buffer = [0; 4096];
        match fds::receive(stream.as_fd(), &mut buffer, &mut Vec::new(), 0) {
            Ok(count) if count > 0 => decoder.feed(&buffer[..count]),
            _ => return,
        }
    }
}

fn answer(stream: BorrowedFd<'_>, call: &Value, shared: &mut Shared) {
    if shared.gone {
        return;
    }
    let method = call["method"].as_str().unwrap().trim_start_matches("io.canal.Lock.");
    shared.calls.push((method.to_owned(), call["parameters"].clone()));
    match method {
        "Acquire" if shared.sure.is_some() && call["parameters"]["wrapper"] == "exec" => {
            let parameters = json!({ "message": "needs a supervisor" });
            send(
                stream,
                &json!({ "error": "io.canal.Lock.SupervisorRequired", "parameters": parameters }),
                None,
            );
        }
        "Acquire" => {
            let mut parameters = json!({
                "keys": [{ "key": "db", "acquired": 1, "slots": [], "mode": "counted" }],
                "token": 9, "owner": { "pid": 1, "command": "x" }, "session": "s1", "frame": "f1",
            });
            if let Some((term_in, kill_in)) = shared.sure {
                parameters["deadline_fd"] = 0.into();
                parameters["liveness_fd"] = 1.into();
                shared.writer = Some(writer(term_in, kill_in));
            }
            send(stream, &json!({ "parameters": parameters }), shared.writer.as_ref());
        }
        "DeadlinePage" if shared.writer.is_some() => {
            let parameters = json!({ "deadline_fd": 0, "liveness_fd": 1 });
            send(stream, &json!({ "parameters": parameters }), shared.writer.as_ref());
        }
        "DeadlinePage" if shared.lost.is_some() && call["parameters"]["token"] == 9 => {
            let parameters = json!({ "message": "lost", "reason": shared.lost });
            let reply = json!({ "error": "io.canal.Lock.LeaseLost", "parameters": parameters });
            send(stream, &reply, None);
        }
        "DeadlinePage" => {
            let parameters = json!({ "message": "nothing of this tag is held here" });
            let reply = json!({ "error": "io.canal.Lock.NotHeld", "parameters": parameters });
            send(stream, &reply, None);
        }
        _ => send(stream, &json!({ "parameters": { "released": [] } }), None),
    }
}

fn send(stream: BorrowedFd<'_>, reply: &Value, page: Option<&Writer>) {
    let mut bytes = Vec::new();
    frame::append(reply, &mut bytes).unwrap();
    let descriptors: Vec<_> =
        page.iter().flat_map(|writer| [writer.page(), writer.line()]).collect();
    // The client may have gone.
    let _ = fds::send(stream, &bytes, &descriptors, 0);
}
