//! Tells systemd (`Type=notify`) that the router serves, and which process it is: after an upgrade another one.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where systemd listens: a path, or a name that begins with `@` (sd_notify(3)).
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Tells it; without a supervisor that wants to know nothing happens.
pub(crate) fn ready() {
    let Some(name) = std::env::var_os(VARIABLE) else { return };
    if let Err(error) = send(name.as_bytes(), &format!("READY=1\nMAINPID={}\n", std::process::id())) {
        tracing::warn!(%error, "systemd could not be told");
    }
}

fn send(name: &[u8], message: &str) -> io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_path_and_an_abstract_name_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("prefixroute-test-{}", std::process::id());
        let listeners = [
            UnixDatagram::bind(&path).unwrap(),
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
        ];
        let names = [path.to_str().unwrap().to_owned(), format!("@{name}")];
        for (listener, name) in listeners.iter().zip(names) {
            send(name.as_bytes(), "READY=1\n").unwrap();
            let mut message = [0; 64];
            let length = listener.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"READY=1\n", "{name}");
        }
        assert!(send(b"/nowhere/notify", "READY=1\n").is_err());
    }
}
