//! Where the process listens. No two of its sockets may want one address: the second would fail to bind.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::tls;
use crate::defaults::{ADMIN, LISTEN, LISTENERS_MAX};
use crate::faults::Reason;
use crate::read::form::{Choice, Text};
use crate::read::{Key, Place, Placed, Section, restart};
use crate::{Flags, Listener, Protocol};

const LISTENERS: Key = restart("listeners", "Where clients are served").default_is("one, at 127.0.0.1:8080");
const ADDRESS: Key = restart("address", "What clients connect to; port 0 is any free one");
const PROTOCOL: Key = restart(
    "protocol",
    "What is spoken in clear text: HTTP/1, or HTTP/2 with prior knowledge. With TLS clients choose by ALPN",
);
const TLS: Key =
    restart("tls", "Serves TLS; its certificates and authorities change live").default_is("none, clear text");
const ADMIN_KEY: Key =
    restart("admin", "Where metrics, health, state and reload are served; not for clients");

const SOCKET: Text<SocketAddr> = Text {
    wanted: "IP:PORT",
    pattern: "^(\\[[0-9A-Fa-f:.]+\\]|[0-9.]+):[0-9]+$",
    read: |text| text.parse().map_err(|_| Reason::text(text, "IP:PORT")),
    show: SocketAddr::to_string,
};
const PROTOCOLS: Choice<Protocol> =
    Choice { names: Protocol::NAMES, from_name: Protocol::from_name, name: |protocol| protocol.name() };

/// Reads both kinds of sockets.
pub(super) fn read(top: &mut Section<'_, '_>, flags: &Flags) -> (Vec<Listener>, SocketAddr) {
    let settings = top.reader.settings.len();
    let written = top.sections(LISTENERS, 1..=LISTENERS_MAX, listener);
    let flagged = listen_flag(top, flags);
    let (listeners, mut bound) = match (flagged, written) {
        (Some(flagged), _) => {
            // Those of the file are no longer bound.
            top.reader.settings.truncate(settings);
            only(top, flagged)
        }
        (None, Some(written)) => written.value.into_iter().unzip(),
        (None, None) => {
            top.reader.settings.truncate(settings);
            only(top, default(LISTEN, "the default listener"))
        }
    };
    let form = &SOCKET;
    let admin = top.value_or_flag(ADMIN_KEY, form, ADMIN, ("--admin", flags.admin.as_deref()));
    let address = admin.value;
    bound.push(if admin.is_written() { admin } else { default(ADMIN, "the default admin") });
    refuse_shared(top, &bound);
    (listeners, address)
}

fn default(value: SocketAddr, name: &str) -> Placed<SocketAddr> {
    Placed { value, place: Place::Default, path: name.to_owned() }
}

/// The one listener that is not the file's.
fn only(top: &mut Section<'_, '_>, at: Placed<SocketAddr>) -> (Vec<Listener>, Vec<Placed<SocketAddr>>) {
    let (address, protocol) = (at.value, Protocol::default());
    top.reader.setting("listeners[0].address", address.to_string(), at.place);
    top.reader.setting("listeners[0].protocol", protocol.name().to_owned(), Place::Default);
    (vec![Listener { address, protocol, tls: None }], vec![at])
}

fn listener(section: &mut Section<'_, '_>) -> Option<(Listener, Placed<SocketAddr>)> {
    let address = section.required(ADDRESS, &SOCKET);
    let protocol = section.value(PROTOCOL, &PROTOCOLS, Protocol::default());
    let tls = section.optional_section(TLS, tls::server);
    if tls.is_some() && protocol.value == Protocol::H2c {
        let reason = Reason::thing("h2c beside tls", "http1: with TLS clients choose HTTP/2 by ALPN");
        section.reader.fault_of(&protocol, reason);
    }
    let address = address?;
    let tls = tls.and_then(|tls| tls.value);
    Some((Listener { address: address.value, protocol: protocol.value, tls }, address))
}

/// The address of `--listen` or `--port`.
fn listen_flag(top: &mut Section<'_, '_>, flags: &Flags) -> Option<Placed<SocketAddr>> {
    let Flags { listen, port, .. } = flags;
    if listen.is_some() && port.is_some() {
        top.reader.fault(Place::Flag("--port"), "", Reason::thing("--listen too", "one of the two"));
    }
    let short = |port: u16| Placed {
        value: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
        place: Place::Flag("--port"),
        path: String::new(),
    };
    top.flag(("--listen", listen.as_deref()), &SOCKET).or(port.map(short))
}

/// Two sockets on one address are a fault at the later one, or at the earlier if the later is a default.
fn refuse_shared(top: &mut Section<'_, '_>, bound: &[Placed<SocketAddr>]) {
    for (index, later) in bound.iter().enumerate() {
        let earlier = bound.iter().take(index).find(|earlier| collide(earlier.value, later.value));
        let Some(earlier) = earlier else { continue };
        let (at, other) = if later.is_written() { (later, earlier) } else { (earlier, later) };
        let found = format_args!("{}, which {} takes", at.value, name(other));
        top.reader.fault_of(at, Reason::thing(found, "an address of its own"));
    }
}

fn name(bound: &Placed<SocketAddr>) -> &str {
    match bound.place {
        Place::Flag(flag) => flag,
        Place::File(_) | Place::Further(..) | Place::Default => &bound.path,
    }
}

/// Whether the second to bind would fail. Port 0 is a free port each time.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |wide: IpAddr, narrow: IpAddr| wide.is_unspecified() && wide.is_ipv4() == narrow.is_ipv4();
    let (one_ip, other_ip) = (one.ip(), other.ip());
    let same_host = one_ip == other_ip || covers(one_ip, other_ip) || covers(other_ip, one_ip);
    one.port() != 0 && one.port() == other.port() && same_host
}
