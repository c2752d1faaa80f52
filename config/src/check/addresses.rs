//! Where the process listens. No two of its sockets may want one address: the second would fail to bind.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_saphyr::Spanned;

use super::{Checker, Place};
use crate::defaults::{ADMIN, LISTEN, LISTENERS_MAX};
use crate::faults::Reason;
use crate::raw::{List, RawListener, Text, one_of};
use crate::{Flags, Listener, Protocol};

/// A checked address with its key, and its place if it was written and is no default.
struct Bound {
    address: SocketAddr,
    path: String,
    place: Option<Place>,
}

impl Checker<'_> {
    pub(super) fn addresses(
        &mut self,
        listeners: List<RawListener>,
        admin: Text,
        flags: &Flags,
    ) -> (Vec<Listener>, SocketAddr) {
        let mut bound = Vec::new();
        let from_file = self.listeners(listeners, &mut bound);
        let from_flags = self.listener_flag(flags, &mut bound);
        let admin = self.admin(admin, flags, &mut bound);
        self.refuse_shared(&bound);
        (from_flags.map_or(from_file, |listener| vec![listener]), admin)
    }

    fn listeners(&mut self, raw: List<RawListener>, bound: &mut Vec<Bound>) -> Vec<Listener> {
        let Some(Spanned { value: items, referenced, .. }) = raw else {
            bound.push(Bound { address: LISTEN, path: String::new(), place: None });
            return vec![Listener { address: LISTEN, protocol: Protocol::default(), tls: None }];
        };
        if !(1..=LISTENERS_MAX).contains(&items.len()) {
            let wanted = format!("1 to {LISTENERS_MAX} of them");
            self.add(&Place::File(referenced), "listeners", Reason::thing(items.len(), wanted));
        }
        let items = items.into_iter().take(LISTENERS_MAX).enumerate();
        items.filter_map(|(index, item)| self.listener(index, item, bound)).collect()
    }

    fn listener(
        &mut self,
        index: usize,
        raw: Spanned<RawListener>,
        bound: &mut Vec<Bound>,
    ) -> Option<Listener> {
        let RawListener { address, protocol } = raw.value;
        let protocol =
            self.value(&format!("listeners[{index}].protocol"), protocol, Protocol::default(), |text| {
                Protocol::from_name(text).ok_or_else(|| Reason::text(text, one_of(Protocol::NAMES)))
            });
        let path = format!("listeners[{index}].address");
        let (place, found) = match address {
            Some(text) => (Place::File(text.referenced), socket_address(&text.value)),
            None => (Place::File(raw.referenced), Err(Reason::thing("nothing", "IP:PORT"))),
        };
        let address = self.ok(&place, &path, found)?;
        bound.push(Bound { address, path, place: Some(place) });
        Some(Listener { address, protocol, tls: None })
    }

    /// The listener of `--listen` or `--port`; those of the file are no longer bound then.
    fn listener_flag(&mut self, flags: &Flags, bound: &mut Vec<Bound>) -> Option<Listener> {
        let Flags { listen, port, .. } = flags;
        if listen.is_some() && port.is_some() {
            self.add(&Place::Flag("--port"), "", Reason::thing("--listen too", "one of the two"));
        }
        let listen =
            self.flag("--listen", listen.as_deref(), socket_address).map(|address| ("--listen", address));
        let short = port.map(|port| ("--port", SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)));
        let (flag, address) = listen.or(short)?;
        bound.clear();
        bound.push(Bound { address, path: String::new(), place: Some(Place::Flag(flag)) });
        Some(Listener { address, protocol: Protocol::default(), tls: None })
    }

    fn admin(&mut self, raw: Text, flags: &Flags, bound: &mut Vec<Bound>) -> SocketAddr {
        let written = raw.as_ref().map(|text| Place::File(text.referenced));
        let from_file = self.value("admin", raw, ADMIN, socket_address);
        let from_flag = self.flag("--admin", flags.admin.as_deref(), socket_address);
        let address = from_flag.unwrap_or(from_file);
        let bound_by_flag = Bound { address, path: String::new(), place: Some(Place::Flag("--admin")) };
        let bound_by_file = Bound { address, path: "admin".to_owned(), place: written };
        bound.push(if from_flag.is_some() { bound_by_flag } else { bound_by_file });
        address
    }

    /// Two sockets on one address are a fault at the later one, or at the earlier if the later is a default.
    fn refuse_shared(&mut self, bound: &[Bound]) {
        for (index, later) in bound.iter().enumerate() {
            let earlier = bound.iter().take(index).find(|earlier| collide(earlier.address, later.address));
            let Some(earlier) = earlier else { continue };
            let (at, other) = if later.place.is_some() { (later, earlier) } else { (earlier, later) };
            let found = format_args!("{}, which {} takes", at.address, other.name());
            let reason = Reason::thing(found, "an address of its own");
            if let Some(place) = &at.place {
                self.add(place, &at.path, reason);
            }
        }
    }
}

impl Bound {
    fn name(&self) -> &str {
        match &self.place {
            Some(Place::Flag(flag)) => flag,
            Some(Place::File(_)) => &self.path,
            None if self.path.is_empty() => "the default listener",
            None => "the default admin",
        }
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, Reason> {
    text.parse().map_err(|_| Reason::text(text, "IP:PORT"))
}

/// Whether the second to bind would fail. Port 0 is a free port each time.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |wide: IpAddr, narrow: IpAddr| wide.is_unspecified() && wide.is_ipv4() == narrow.is_ipv4();
    let (one_ip, other_ip) = (one.ip(), other.ip());
    let same_host = one_ip == other_ip || covers(one_ip, other_ip) || covers(other_ip, one_ip);
    one.port() != 0 && one.port() == other.port() && same_host
}
