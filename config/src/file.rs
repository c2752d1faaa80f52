//! The file itself, up to its limit.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::defaults::FILE_BYTES_MAX;
use crate::faults::{Fault, Faults, Reason};
use crate::tree::check_length;

/// A file's text for [`crate::load`]: at most [`FILE_BYTES_MAX`], UTF-8.
///
/// Errors: one fault, of the file as a whole.
pub fn read_file(path: &Path) -> Result<String, Faults> {
    let fault = |reason| Faults::from(Fault::of_file(&path.display().to_string(), reason));
    let unread = |error| fault(Reason::thing(error, "a file that can be read"));
    let bytes = read_bounded(path).map_err(unread)?;
    check_length(bytes.len(), FILE_BYTES_MAX).map_err(fault)?;
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        fault(Reason::thing(format_args!("a byte that is not UTF-8 at offset {offset}"), "UTF-8"))
    })
}

/// A file's bytes; one more than [`FILE_BYTES_MAX`] of one that is longer.
pub(crate) fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(room).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Write;

    use super::*;

    fn written(bytes: &[u8]) -> Result<String, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        read_file(file.path()).map_err(|faults| faults.iter().next().unwrap().reason.to_string())
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        assert_eq!(written(b"drain: 1s\n"), Ok("drain: 1s\n".to_owned()));
        assert_eq!(written(&vec![b' '; FILE_BYTES_MAX]).map(|text| text.len()), Ok(FILE_BYTES_MAX));
        let too_long = written(&vec![b' '; FILE_BYTES_MAX + 1]);
        assert_eq!(too_long, Err("found a longer file, wanted at most 1048576 bytes".to_owned()));
    }

    #[test]
    fn a_file_that_is_not_text_is_a_fault() {
        let reason = "found a byte that is not UTF-8 at offset 7, wanted UTF-8";
        assert_eq!(written(b"drain: \xff"), Err(reason.to_owned()));
    }

    #[test]
    fn a_file_that_is_absent_is_a_fault_of_its_name() {
        let faults = read_file(Path::new("no/such.yaml")).unwrap_err().to_string();
        assert!(faults.starts_with("no/such.yaml: found No such file"), "{faults}");
        assert!(faults.ends_with(", wanted a file that can be read"), "{faults}");
    }
}
