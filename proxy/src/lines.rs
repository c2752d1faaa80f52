//! Lines that a thread of its own writes.
//!
//! Requests never wait for a disk or a pipe: lines go into a queue with room for [`LINES_MAX`], and those that find it full
//! are counted instead. `tracing-appender` would do the same, but keeps the file that it opened, and a file that was
//! rotated away has to be opened anew.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// Lines that wait to be written: 5 MB of an access log's ordinary ones, 40 MB of the longest that clients can bring about.
const LINES_MAX: usize = 8_192;
/// Lines and bytes that are written at once.
const BATCH_MAX: usize = 2_048;
const BATCH_BYTES: usize = 1 << 20;
/// How long the thread lets lines gather behind a first one: woken for each, it costs a request half as much again.
const GATHER: Duration = Duration::from_millis(10);
/// How long the end of the program waits for the last lines: a pipe that nobody reads takes none.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Where lines go. Flushed after each batch, which is whole lines; after a failure only the rest of a line may be missing.
pub(crate) type Sink = Box<dyn Write + Send>;

/// A log of lines. Dropped, it writes what is still in the queue.
pub(crate) struct Lines {
    name: &'static str,
    queue: Option<SyncSender<Message>>,
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

impl Lines {
    /// Starts the thread; `name` is how the log is spoken of. Errors: the system gives none.
    pub(crate) fn start(name: &'static str, sink: Sink) -> io::Result<Self> {
        let (queue, lines) = sync_channel(LINES_MAX);
        let (end, ended) = channel();
        let shared = Arc::new(Shared::default());
        let mut writer = Writer { name, sink, shared: shared.clone(), failing: false, torn: false };
        thread::Builder::new().name(name.replace(' ', "-")).spawn(move || {
            writer.run(&lines);
            let _ = end.send(());
        })?;
        Ok(Self { name, queue: Some(queue), shared, ended: Mutex::new(ended) })
    }

    /// Writes a line, its end included, later. Never waits; where the queue is full the line is lost and counted.
    pub(crate) fn write(&self, line: Vec<u8>) {
        let sent = self.queue.as_ref().is_some_and(|queue| queue.try_send(Message::Line(line)).is_ok());
        if !sent {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From here on lines go elsewhere: at each reload, so that a file that was renamed is let go.
    pub(crate) fn switch(&self, sink: Sink) {
        *self.shared.next.lock() = Some(sink);
        if let Some(queue) = &self.queue {
            // Where there is no room the thread is awake anyhow.
            let _ = queue.try_send(Message::Look);
        }
    }

    /// Lines that were lost: to a full queue, or to a sink that would not take them.
    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.queue = None;
        if self.ended.lock().recv_timeout(FLUSH_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{}: the last lines were not taken in time", self.name);
        }
    }
}

/// The thread's own.
struct Writer {
    name: &'static str,
    sink: Sink,
    shared: Arc<Shared>,
    failing: bool,
    /// The sink has the beginning of a line whose end it did not take.
    torn: bool,
}

impl Writer {
    /// Writes until nobody is left who could send a line.
    fn run(&mut self, queue: &Receiver<Message>) {
        let mut batch = Vec::new();
        while let Ok(first) = queue.recv() {
            thread::sleep(GATHER);
            batch.clear();
            for message in [first].into_iter().chain(queue.try_iter().take(BATCH_MAX - 1)) {
                if let Message::Line(line) = message {
                    batch.extend_from_slice(&line);
                }
                if batch.len() >= BATCH_BYTES {
                    break;
                }
            }
            if let Some(next) = self.shared.next.lock().take() {
                self.sink = next;
            }
            self.put(&batch);
        }
    }

    /// Writes whole lines. Those that a sink does not take are lost and counted; one that it took half of is ended before the next,
    /// which would else be lost with it.
    fn put(&mut self, batch: &[u8]) {
        let mut left = batch;
        let ended = if self.torn { self.write(&mut b"\n".as_slice()) } else { Ok(()) };
        let written = ended.and_then(|()| {
            self.torn = false;
            let written = self.write(&mut left);
            let begun = batch.get(..batch.len() - left.len()).and_then(<[u8]>::last);
            self.torn = begun.is_some_and(|&last| last != b'\n');
            written
        });
        let written = written.and_then(|()| self.sink.flush());
        if let Err(error) = &written {
            let lines = left.iter().filter(|&&byte| byte == b'\n').count();
            self.shared.dropped.fetch_add(lines as u64, Ordering::Relaxed);
            if !self.failing {
                tracing::warn!(%error, "{}: lines are lost", self.name);
            }
        }
        self.failing = written.is_err();
    }

    /// Writes all of it, and takes off what was written.
    fn write(&mut self, left: &mut &[u8]) -> io::Result<()> {
        while !left.is_empty() {
            match self.sink.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => *left = left.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::Path;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    fn file(path: &Path) -> Sink {
        Box::new(OpenOptions::new().append(true).create(true).open(path).expect("a file"))
    }

    fn line(number: u64) -> Vec<u8> {
        format!("{number}\n").into_bytes()
    }

    fn numbers(path: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(path).expect("a file");
        text.lines().map(|line| line.parse().expect("a number")).collect()
    }

    #[test]
    fn lines_are_appended_in_order_and_flushed_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        for first in [0, 1_000] {
            let log = Lines::start("test", file(&path)).expect("a thread");
            (first..first + 1_000).for_each(|number| log.write(line(number)));
            assert_eq!(log.dropped(), 0);
        }
        assert_eq!(numbers(&path), (0..2_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_switch_goes_on_in_another_file_and_loses_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, rotated) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
        let log = Lines::start("test", file(&path)).expect("a thread");
        log.write(line(1));
        std::fs::rename(&path, &rotated).expect("renamed");
        log.switch(file(&path));
        log.write(line(2));
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
        let stuck = Box::new(Stuck(busy, may_go_on, taken.clone()));
        let log = Lines::start("test", stuck).expect("a thread");
        log.write(line(0));
        is_busy.recv_timeout(WITHIN).expect("the first line arrives");
        (0..LINES_MAX as u64 + 10).for_each(|number| log.write(line(number)));
        assert_eq!(log.dropped(), 10, "the queue is full and no write waited");
        drop(go_on);
        drop(log);
        let lines = taken.lock().iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(lines, LINES_MAX + 1);
    }

    /// Takes so many bytes more, then nothing until it may again: a disk that is full for a while.
    struct Room(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Room {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (room, taken) = &mut *self.0.lock();
            let bytes = &bytes[..bytes.len().min(*room)];
            if bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *room -= bytes.len();
            taken.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_a_full_disk_has_cut_spoils_no_other() {
        let disk = Arc::new(Mutex::new((7, Vec::new())));
        let shared = Arc::<Shared>::default();
        let sink = Box::new(Room(disk.clone()));
        let mut writer = Writer { name: "test", sink, shared: shared.clone(), failing: false, torn: false };
        let dropped = || shared.dropped.load(Ordering::Relaxed);
        writer.put(b"one\ntwo two\nthree\n");
        assert_eq!(dropped(), 2, "the first was written");
        writer.put(b"four\n");
        assert_eq!(dropped(), 3);
        disk.lock().0 = 100;
        writer.put(b"five\n");
        writer.put(b"six\n");
        assert_eq!(dropped(), 3);
        assert_eq!(String::from_utf8_lossy(&disk.lock().1), "one\ntwo\nfive\nsix\n");
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
        let log = Lines::start("test", Box::new(Full)).expect("a thread");
        let shared = log.shared.clone();
        (0..5).for_each(|number| log.write(line(number)));
        drop(log);
        assert_eq!(shared.dropped.load(Ordering::Relaxed), 5);
    }
}
