//! How the router ends: what a drain gives to clients, and where another process takes its listeners over.

use super::TIME;
use crate::Ending;
use crate::defaults;
use crate::read::{FilePath, Key, Section, live, restart};

const DRAIN: Key = live("drain", "Time that running requests get after SIGTERM; zero stops at once");
const DELAY: Key = live(
    "drain_delay",
    "Time after SIGTERM in which the router is not ready and takes connections all the same",
);
const IDLE: Key = live(
    "drain_idle",
    "Time that an unused connection of a client stays in a drain, for a request on its way; at most half of `drain`",
);
const SOCKET: Key =
    restart("upgrade_socket", "Where `serve --upgrade` takes the listeners over from a router that runs");

pub(super) fn read(top: &mut Section<'_, '_>) -> Ending {
    let drain = top.value(DRAIN, &TIME, defaults::DRAIN).value;
    let delay = top.value(DELAY, &TIME, defaults::DRAIN_DELAY).value;
    let idle = top.value(IDLE, &TIME, defaults::DRAIN_IDLE).value;
    let socket = top.optional(SOCKET, &FilePath).map(|path| path.value);
    Ending { drain, delay, idle, upgrade_socket: socket.map(|path| top.reader.in_folder(path)) }
}
