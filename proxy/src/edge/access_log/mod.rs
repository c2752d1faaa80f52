//! One line of JSON for each request, written by a thread of its own.
//!
//! Requests never wait for a disk or a pipe: lines go into a queue with room for [`LINES_MAX`], and those that find it full
//! are counted instead. `tracing-appender` would do the same, but keeps the file that it opened, and a file that was
//! rotated away has to be opened anew.

mod line;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use line::{Line, Text};

/// Lines that wait to be written: 5 MB of ordinary ones, 40 MB of the longest that clients can bring about.
const LINES_MAX: usize = 8_192;
/// Lines that are written at once.
const BATCH_MAX: usize = 2_048;
/// How long the thread lets lines gather behind a first one: woken for each, it costs a request half as much again.
const GATHER: Duration = Duration::from_millis(10);
/// How long the end of the program waits for the last lines: a pipe that nobody reads takes none.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Where lines go, opened.
pub(crate) struct Sink(Box<dyn Write + Send>);

/// The access log. Dropped, it writes what is still in the queue.
pub(crate) struct AccessLog {
    lines: Option<SyncSender<Message>>,
    shared: Arc<Shared>,
    ended: Mutex<Receiver<()>>,
}

/// What request and thread both see.
#[derive(Default)]
struct Shared {
    /// The sink that the thread is to take from the next line on.
    next: Mutex<Option<Sink>>,
    dropped: AtomicU64,
}

enum Message {
    Line(Vec<u8>),
    /// There is another sink.
    Look,
}

impl Sink {
    /// Opens what is configured; a file is appended to, and made where there is none. Errors: the system's.
    pub(crate) fn open(to: &config::AccessLog) -> io::Result<Self> {
        Ok(match to {
            config::AccessLog::Stdout => Self(Box::new(io::stdout())),
            config::AccessLog::File(path) => {
                // To open a pipe that nobody reads is to wait for a reader: asked first, without waiting, it is an error.
                let mut asking = OpenOptions::new();
                let _asked = asking.append(true).create(true).custom_flags(libc::O_NONBLOCK).open(path)?;
                Self(Box::new(OpenOptions::new().append(true).create(true).open(path)?))
            }
        })
    }
}

impl AccessLog {
    /// Starts the thread. Errors: the system gives none.
    pub(crate) fn start(sink: Sink) -> io::Result<Self> {
        let (lines, queue) = sync_channel(LINES_MAX);
        let (end, ended) = channel();
        let shared = Arc::new(Shared::default());
        let mut writer = Writer { sink, shared: shared.clone(), failing: false };
        thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            writer.run(&queue);
            let _ = end.send(());
        })?;
        Ok(Self { lines: Some(lines), shared, ended: Mutex::new(ended) })
    }

    /// Writes a line, later. Never waits; where the queue is full the line is lost and counted.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let sent =
            self.lines.as_ref().is_some_and(|lines| lines.try_send(Message::Line(line.json())).is_ok());
        if !sent {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From here on lines go elsewhere: at each reload, so that a file that was renamed is let go.
    pub(crate) fn switch(&self, sink: Sink) {
        *self.shared.next.lock() = Some(sink);
        if let Some(lines) = &self.lines {
            // Where there is no room the thread is awake anyhow.
            let _ = lines.try_send(Message::Look);
        }
    }

    /// Lines that were lost: to a full queue, or to a sink that would not take them.
    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.lines = None;
        if self.ended.lock().recv_timeout(FLUSH_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("access log: the last lines were not taken in time");
        }
    }
}

/// The thread's own.
struct Writer {
    sink: Sink,
    shared: Arc<Shared>,
    failing: bool,
}

impl Writer {
    /// Writes until nobody is left who could send a line.
    fn run(&mut self, queue: &Receiver<Message>) {
        let mut batch = Vec::new();
        while let Ok(first) = queue.recv() {
            thread::sleep(GATHER);
            batch.clear();
            let more = queue.try_iter().take(BATCH_MAX - 1);
            let mut lines = 0;
            for message in [first].into_iter().chain(more) {
                if let Message::Line(line) = message {
                    batch.extend_from_slice(&line);
                    lines += 1;
                }
            }
            if let Some(next) = self.shared.next.lock().take() {
                self.sink = next;
            }
            self.put(&batch, lines);
        }
    }

    fn put(&mut self, batch: &[u8], lines: u64) {
        let written = self.sink.0.write_all(batch).and_then(|()| self.sink.0.flush());
        if let Err(error) = &written {
            self.shared.dropped.fetch_add(lines, Ordering::Relaxed);
            if !self.failing {
                tracing::warn!(%error, "access log: lines are lost");
            }
        }
        self.failing = written.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const WITHIN: Duration = Duration::from_secs(10);

    fn file(path: &Path) -> Sink {
        Sink::open(&config::AccessLog::File(path.to_owned())).expect("a file")
    }

    fn line(number: u64) -> Line<'static> {
        Line { request_bytes: number, ..Line::default() }
    }

    fn numbers(path: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(path).expect("a file");
        let number = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            line["request_bytes"].as_u64().expect("a number")
        };
        text.lines().map(number).collect()
    }

    #[test]
    fn lines_are_appended_in_order_and_flushed_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        for first in [0, 1_000] {
            let log = AccessLog::start(file(&path)).expect("a thread");
            (first..first + 1_000).for_each(|number| log.write(&line(number)));
            assert_eq!(log.dropped(), 0);
        }
        assert_eq!(numbers(&path), (0..2_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_switch_goes_on_in_another_file_and_loses_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, rotated) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
        let log = AccessLog::start(file(&path)).expect("a thread");
        log.write(&line(1));
        std::fs::rename(&path, &rotated).expect("renamed");
        log.switch(file(&path));
        log.write(&line(2));
        drop(log);
        let (mut old, new) = (numbers(&rotated), numbers(&path));
        assert!(new.contains(&2), "{new:?}");
        old.extend(new);
        assert_eq!(old, [1, 2]);
    }

    /// Says that it was written to, then takes nothing until it may.
    struct Stuck(std::sync::mpsc::Sender<()>, Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(());
            let _ = self.1.recv();
            self.2.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_sink_that_takes_nothing_loses_lines_and_holds_nobody() {
        let (busy, is_busy) = channel();
        let (go_on, may_go_on) = channel();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let stuck = Sink(Box::new(Stuck(busy, may_go_on, taken.clone())));
        let log = AccessLog::start(stuck).expect("a thread");
        log.write(&line(0));
        is_busy.recv_timeout(WITHIN).expect("the first line arrives");
        (0..LINES_MAX as u64 + 10).for_each(|number| log.write(&line(number)));
        assert_eq!(log.dropped(), 10, "the queue is full and no write waited");
        drop(go_on);
        drop(log);
        let lines = taken.lock().iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(lines, LINES_MAX + 1);
    }

    /// Takes no line at all, as a full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_refuses_are_counted() {
        let log = AccessLog::start(Sink(Box::new(Full))).expect("a thread");
        let shared = log.shared.clone();
        (0..5).for_each(|number| log.write(&line(number)));
        drop(log);
        assert_eq!(shared.dropped.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("missing").join("access.log");
        assert!(Sink::open(&config::AccessLog::File(path)).is_err());
    }
}
