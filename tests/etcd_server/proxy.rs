//! A proxy for TCP that can cut its connections, slow them down, or let them fall silent: whole, in
//! one direction, or in part.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const OPEN: u8 = 0;
const CUT: u8 = 1;
const SILENT: u8 = 2;
const ENDED: u8 = 3;
/// Silent towards the server, or from it.
const NOT_ASKING: u8 = 4;
const NOT_ANSWERING: u8 = 5;

/// How soon a change is noticed.
const TICK: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct State {
    mode: AtomicU8,
    /// For how long each piece of data is kept back, in milliseconds.
    delay_ms: AtomicU64,
    /// What is not passed on to the server, nor anything after it.
    withheld: Mutex<Option<&'static [u8]>>,
    /// Whether what the server says is HTTP/2, of which single streams can be muted.
    is_http2: bool,
    muted: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
    accepted: AtomicUsize,
}

/// Passes on what comes to its port. Ends with its value.
#[derive(Debug)]
pub(crate) struct Proxy {
    state: Arc<State>,
    port: u16,
}

impl Proxy {
    pub(crate) fn to(port: u16) -> Self {
        Self::new(port, false)
    }

    /// To a server that speaks HTTP/2, without TLS.
    pub(crate) fn to_http2(port: u16) -> Self {
        Self::new(port, true)
    }

    fn new(port: u16, is_http2: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(State {
            mode: AtomicU8::new(OPEN),
            delay_ms: AtomicU64::new(0),
            withheld: Mutex::default(),
            is_http2,
            muted: AtomicBool::new(false),
            streams: Mutex::default(),
            accepted: AtomicUsize::new(0),
        });
        let there = Arc::clone(&state);
        thread::spawn(move || accept(&listener, port, &there));
        Self { state, port: own }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How many connections there have been.
    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Ends all connections, and each new one at once.
    pub(crate) fn cut(&self) {
        self.state.mode.store(CUT, Ordering::SeqCst);
        self.state.end_all();
    }

    /// Ends all connections; new ones are served.
    pub(crate) fn cut_once(&self) {
        self.state.end_all();
    }

    /// Passes nothing on any more and ends nothing, as a network that loses all packets.
    pub(crate) fn fall_silent(&self) {
        self.state.mode.store(SILENT, Ordering::SeqCst);
    }

    /// The same in one direction: to the server, or from it.
    pub(crate) fn fall_silent_one_way(&self, to_server: bool) {
        let mode = if to_server { NOT_ASKING } else { NOT_ANSWERING };
        self.state.mode.store(mode, Ordering::SeqCst);
    }

    /// Keeps each piece of data back for so long, until [`Self::mend`].
    pub(crate) fn slow_down(&self, delay: Duration) {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap();
        self.state.delay_ms.store(delay_ms, Ordering::SeqCst);
    }

    /// Passes on what the server is told only as far as these bytes, on each connection.
    pub(crate) fn withhold(&self, words: &'static str) {
        *self.state.withheld.lock().unwrap() = Some(words.as_bytes());
    }

    /// Keeps back what the server says on the streams of HTTP/2 on which it has said something by
    /// now, and passes on what it says on later ones.
    pub(crate) fn mute_streams(&self) {
        self.state.muted.store(true, Ordering::SeqCst);
    }

    /// Passes everything on again; what was withheld, and its connection, is lost.
    pub(crate) fn mend(&self) {
        if self.state.withheld.lock().unwrap().take().is_some() {
            self.state.end_all();
        }
        self.state.delay_ms.store(0, Ordering::SeqCst);
        self.state.mode.store(OPEN, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.mode.store(ENDED, Ordering::SeqCst);
        self.state.end_all();
    }
}

impl State {
    fn mode(&self) -> u8 {
        self.mode.load(Ordering::SeqCst)
    }

    fn is_silent(&self, asks: bool) -> bool {
        let mode = self.mode();
        mode == SILENT || mode == if asks { NOT_ASKING } else { NOT_ANSWERING }
    }

    fn withholds(&self, asked: &[u8]) -> bool {
        let words = *self.withheld.lock().unwrap();
        words.is_some_and(|words| asked.windows(words.len()).any(|part| part == words))
    }

    fn end_all(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, port: u16, state: &Arc<State>) {
    while state.mode() != ENDED {
        let Ok((near, _)) = listener.accept() else {
            thread::sleep(TICK);
            continue;
        };
        state.accepted.fetch_add(1, Ordering::SeqCst);
        if state.mode() == CUT {
            continue;
        }
        let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
            continue;
        };
        for stream in [&near, &far] {
            stream.set_nonblocking(false).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(TICK)).unwrap();
            state.streams.lock().unwrap().push(stream.try_clone().unwrap());
        }
        for (from, to, asks) in [(&near, &far, true), (&far, &near, false)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let state = Arc::clone(state);
            thread::spawn(move || pass_on(from, to, asks, &state));
        }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, asks: bool, state: &State) {
    let mut bytes = vec![0; 1 << 16];
    let mut withheld = false;
    let mut frames = (state.is_http2 && !asks).then(Frames::default);
    while state.mode() != ENDED {
        if state.is_silent(asks) {
            thread::sleep(TICK);
            continue;
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => {
                // What was read when it fell silent is lost on nobody: it comes when mended.
                while state.is_silent(asks) {
                    thread::sleep(TICK);
                }
                thread::sleep(Duration::from_millis(state.delay_ms.load(Ordering::SeqCst)));
                withheld = withheld || asks && state.withholds(&bytes[..read]);
                let framed = frames.as_mut().map(|frames| frames.pass(&bytes[..read], state));
                let passed = framed.as_deref().unwrap_or(&bytes[..read]);
                if !withheld && to.write_all(passed).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// The frames of HTTP/2 that a server says on one connection.
#[derive(Default)]
struct Frames {
    /// The beginning of one that is not yet whole.
    begun: Vec<u8>,
    /// The streams on which data came before any was muted.
    spoken: BTreeSet<[u8; 4]>,
}

/// Three bytes of length, one of the kind, one of flags, four of the stream.
const FRAME_HEAD: usize = 9;
const KIND_DATA: u8 = 0;

impl Frames {
    /// What is passed on when these bytes have come.
    fn pass(&mut self, bytes: &[u8], state: &State) -> Vec<u8> {
        self.begun.extend_from_slice(bytes);
        let mut passed = Vec::new();
        while let [a, b, c, kind, _flags, stream @ ..] = &self.begun[..]
            && let Some(&stream) = stream.first_chunk::<4>()
        {
            let length = FRAME_HEAD + u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let is_data = *kind == KIND_DATA;
            if self.begun.len() < length {
                break;
            }
            let frame: Vec<u8> = self.begun.drain(..length).collect();
            if is_data && !state.muted.load(Ordering::SeqCst) {
                self.spoken.insert(stream);
            }
            let is_muted = state.muted.load(Ordering::SeqCst) && self.spoken.contains(&stream);
            if !is_data || !is_muted {
                passed.extend(frame);
            }
        }
        passed
    }
}
