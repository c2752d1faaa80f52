//! Files of a bounded size, the newest under the configured name, older ones as `.1`, `.2` and so on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file that is put aside when it is full. What is flushed is whole lines, so no line is in two files.
pub(super) struct Files {
    path: PathBuf,
    /// A file that has reached this is full.
    bytes_max: u64,
    /// The newest one included; at least 1.
    count: u32,
    file: File,
    bytes: u64,
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
        Ok(Self { path: to.path.clone(), bytes_max: to.file_bytes_max, count: to.files, file, bytes })
    }

    /// Puts the full file aside, drops the oldest, and begins the next.
    fn turn(&mut self) -> io::Result<()> {
        if self.count == 1 {
            fs::remove_file(&self.path)?;
        }
        for older in (1..self.count).rev() {
            let newer = if older == 1 { self.path.clone() } else { numbered(&self.path, older - 1) };
            match fs::rename(newer, numbered(&self.path, older)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        self.bytes = self.file.metadata()?.len();
        Ok(())
    }
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
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()?;
        if self.bytes >= self.bytes_max { self.turn() } else { Ok(()) }
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
        for (count, left) in [(3, vec!["", "line 4 is long\n", "line 3 is long\n"]), (1, vec![""])] {
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
    fn what_is_there_counts_and_a_cut_line_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        fs::write(&path, "cut").unwrap();
        let mut files = files(&path, 2);
        put(&mut files, "short\n");
        assert_eq!(fs::read_to_string(numbered(&path, 1)).unwrap(), "cut\nshort\n", "ten bytes are full");
        put(&mut files, "next\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "next\n");
    }
}
