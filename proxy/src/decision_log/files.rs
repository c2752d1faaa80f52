//! Files of a bounded size, the newest under the configured name, older ones as `.1`, `.2` and so on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file that is put aside before a line would make it larger than it may be; only a line that is longer by itself does. No line
/// is in two files.
pub(super) struct Files {
    path: PathBuf,
    bytes_max: u64,
    /// The newest one included; at least 1.
    count: u32,
    file: File,
    bytes: u64,
    /// The file ends with the beginning of a line.
    in_line: bool,
}

impl Files {
    /// Opens the newest file to append to it. A line that a crash has cut there is ended, so that it spoils no other. Errors:
    /// the system's.
    pub(super) fn open(to: &config::DecisionLog) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).read(true).create(true).open(&to.path)?;
        let mut bytes = file.metadata()?.len();
        if bytes > 0 && last_byte(&mut file)? != b'\n' {
            file.write_all(b"\n")?;
            bytes += 1;
        }
        Ok(Self {
            path: to.path.clone(),
            bytes_max: to.file_bytes_max,
            count: to.files,
            file,
            bytes,
            in_line: false,
        })
    }

    /// Puts the full file aside, drops the oldest, and begins the next.
    fn turn(&mut self) -> io::Result<()> {
        if self.count == 1 {
            where_it_is(fs::remove_file(&self.path))?;
        }
        for older in (1..self.count).rev() {
            let newer = if older == 1 { self.path.clone() } else { numbered(&self.path, older - 1) };
            where_it_is(fs::rename(newer, numbered(&self.path, older)))?;
        }
        self.file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        self.bytes = self.file.metadata()?.len();
        Ok(())
    }
}

/// Whoever has taken a file away has done what was to be done.
fn where_it_is(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn last_byte(file: &mut File) -> io::Result<u8> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

impl Write for Files {
    /// Writes the whole lines for which there is room, or the first one's beginning.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = usize::try_from(self.bytes_max.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let first = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
        if first > room && self.bytes > 0 && !self.in_line {
            self.turn()?;
            return self.write(bytes);
        }
        let fitting = bytes.get(..bytes.len().min(room)).unwrap_or(bytes);
        let whole = fitting.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let lines = bytes.get(..whole.max(first)).unwrap_or(bytes);
        let written = self.file.write(lines)?;
        self.bytes += written as u64;
        self.in_line =
            lines.get(..written).and_then(<[u8]>::last).map_or(self.in_line, |&last| last != b'\n');
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn files(path: &Path, count: u32) -> Files {
        Files::open(&config::DecisionLog { path: path.to_owned(), file_bytes_max: 10, files: count }).unwrap()
    }

    fn put(files: &mut Files, line: &str) {
        files.write_all(line.as_bytes()).unwrap();
        files.flush().unwrap();
    }

    #[test]
    fn full_files_are_put_aside_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        for (count, left) in [
            (3, vec!["line 4 is long\n", "line 3 is long\n", "line 2 is long\n"]),
            (1, vec!["line 4 is long\n"]),
        ] {
            let mut files = files(&path, count);
            for number in 1..=4 {
                put(&mut files, &format!("line {number} is long\n"));
            }
            let names = [path.clone(), numbered(&path, 1), numbered(&path, 2)];
            for (name, want) in names.iter().zip(left) {
                assert_eq!(fs::read_to_string(name).unwrap(), want, "{name:?} of {count}");
            }
            assert!(!numbered(&path, 3).exists());
            names.iter().for_each(|name| drop(fs::remove_file(name)));
        }
    }

    #[test]
    fn no_file_is_larger_than_it_may_be_and_no_line_in_two() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let mut files = files(&path, 9);
        put(&mut files, "one\ntwo\nthree\nfour\n");
        put(&mut files, "longer than a file\nsix\n");
        let names = [4, 3, 2, 1].map(|number| numbered(&path, number)).into_iter().chain([path.clone()]);
        let texts: Vec<_> = names.map(|name| fs::read_to_string(name).unwrap_or_default()).collect();
        assert_eq!(texts, ["one\ntwo\n", "three\n", "four\n", "longer than a file\n", "six\n"]);
    }

    #[test]
    fn what_is_there_counts_and_a_cut_line_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        fs::write(&path, "cut").unwrap();
        let mut files = files(&path, 2);
        put(&mut files, "short\n");
        put(&mut files, "next\n");
        assert_eq!(fs::read_to_string(numbered(&path, 1)).unwrap(), "cut\nshort\n", "ten bytes are full");
        assert_eq!(fs::read_to_string(&path).unwrap(), "next\n");
    }
}
